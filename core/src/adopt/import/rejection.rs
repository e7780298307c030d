//! Defines the reasons why a hook of a configuration cannot become a step. The generated spec lists them in comments.

use super::builtin_checks::UnknownPygrepOption;
use super::config_map::ConfigMapError;
use super::path_pattern::UnsupportedPattern;
use super::shell_words::{ShellCommandError, quote_all};
use crate::decision::file_matcher::FileRuleError;
use crate::model::plan::FILES_PLACEHOLDER;
use crate::spec::quoted;

/// The reason why a hook or a job was not imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Rejection {
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Job(#[from] JobError),
    /// The name of a program is not valid as the name of a toolchain.
    #[error("its program is called {}", quoted(.name))]
    InvalidToolName { name: String },
}

/// The reason why a hook of pre-commit has no equivalent check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HookError {
    #[error(transparent)]
    Config(#[from] ConfigMapError),
    #[error(transparent)]
    Command(#[from] ShellCommandError),
    #[error(transparent)]
    Pygrep(#[from] UnknownPygrepOption),
    /// The entry is not a map.
    #[error("a hook is a map")]
    NotMap,
    /// A required key is missing.
    #[error("it has no `{0}`")]
    MissingKey(&'static str),
    /// The hook checks something other than the tree, such as a commit message.
    #[error("it inspects {target}, but a run has only a tree")]
    NonTreeTarget { target: &'static str },
    /// The hook is of the repository `meta`.
    #[error("it inspects pre-commit itself")]
    MetaHook,
    /// The command is in a manifest that the import does not read.
    #[error(
        "its command is defined in its own repository ({}), which is not read; if the tool is installed, write a step that \
         runs it",
        quoted(.repo)
    )]
    UnknownHook { repo: String },
    /// The hook queries a server.
    #[error("it asks {query}, and an imported step has no network; write a step with `network: allow`")]
    NeedsNetwork { query: &'static str },
    /// The hook runs only on request.
    #[error("it runs only on explicit request (stage `manual`)")]
    ManualStage,
    /// The hook runs at none of the stages that check files.
    #[error("it runs at the stage {}, which checks no tree", quoted(&.stages.join(", ")))]
    NonTreeStage { stages: Vec<String> },
    /// The configuration replaces the language of a known hook.
    #[error("its `language` is set to {} here, but only the language of its repository is known", quoted(.language))]
    ReplacedLanguage { language: String },
    /// The configuration replaces another key of a known hook.
    #[error("its `{key}` differs from that of its repository")]
    ReplacedKey { key: &'static str },
    /// The hook has dependencies in a language without an environment.
    #[error("it has `additional_dependencies`, which its language does not install")]
    UninstalledDependencies,
    /// The hook runs in a container.
    #[error("its language is `{language}`: a step cannot connect to a container daemon")]
    ContainerLanguage { language: String },
    /// The hook needs packages in addition to its own tool.
    #[error(
        "pre-commit installs it with {} in a separate environment; install that next to {} and write a step that runs {}",
        .dependencies.iter().map(|other| quoted(other)).collect::<Vec<_>>().join(", "),
        quoted(.program),
        quoted(&quote_all(.argv))
    )]
    SeparateEnvironment { dependencies: Vec<String>, program: String, argv: Vec<String> },
    /// At most zero file names per call are allowed.
    #[error("its `pass_filenames` is 0")]
    ZeroFilenames,
    /// A pattern of the hook.
    #[error("its `{key}` is {source}")]
    Pattern { key: &'static str, source: UnsupportedPattern },
    /// A pattern of the configuration for all hooks.
    #[error("for all hooks, the `{key}` is {source}")]
    CommonPattern { key: &'static str, source: UnsupportedPattern },
    /// A pattern of the configuration for all hooks is not text.
    #[error("for all hooks, the `{key}` is {source}")]
    CommonPatternType { key: &'static str, source: ConfigMapError },
    /// A file type is unknown.
    #[error("its types are unknown: {0}")]
    UnknownFileType(#[source] FileRuleError),
    /// The hook checks entries of the type `directory`, which only submodules have.
    #[error("it checks submodules (`types: [directory]`), which are not among the files of a step")]
    SubmoduleFiles,
    /// The patterns for all hooks and those of the hook cannot be combined.
    #[error("its patterns are {0}")]
    CombinedPatterns(#[source] UnsupportedPattern),
    /// A word of the command has a different meaning in a spec.
    #[error("its command contains `{FILES_PLACEHOLDER}`, which stands for the files in a spec")]
    FilesWord,
}

/// The reason why a job of lefthook has no equivalent check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum JobError {
    #[error(transparent)]
    Config(#[from] ConfigMapError),
    #[error(transparent)]
    Command(#[from] ShellCommandError),
    #[error(transparent)]
    Pattern(#[from] UnsupportedPattern),
    /// An entry of a list is not a map.
    #[error("a job is a map")]
    NotMap,
    /// A job that is listed by name is not a map.
    #[error("{} is not a map", quoted(.name))]
    NamedJobNotMap { name: String },
    /// A group has no jobs.
    #[error("a group has the key `jobs`")]
    GroupWithoutJobs,
    /// Groups are nested too deeply.
    #[error("its groups are nested more than {max} deep")]
    NestedTooDeep { max: usize },
    /// A variable is a list or a map.
    #[error("a value of `env` is not text")]
    VariableNotText,
    /// The name of a variable is not valid in a spec.
    #[error("its variable {} has a name that a spec cannot set", quoted(.name))]
    VariableName { name: String },
    /// The value of a variable contains other variables.
    #[error("its variable {} is derived from other variables of the caller", quoted(.name))]
    VariableReference { name: String },
    /// The job has a condition `only`.
    #[error("it runs only under a condition (`only`)")]
    OnlyCondition,
    /// The job has a condition `skip`.
    #[error("it runs only under a condition (`skip`)")]
    SkipCondition,
    /// The job is disabled.
    #[error("it is turned off (`skip: true`)")]
    Disabled,
    /// The hook excludes a tag of the job.
    #[error("its tag {} is one of `exclude_tags`", quoted(.tag))]
    ExcludedTag { tag: String },
    /// The hook checks something other than files.
    #[error("it runs at git's `{hook}`, which checks no tree")]
    NonTreeHook { hook: String },
    /// Git does not define a hook of this name.
    #[error("it runs only by `lefthook run {}`", quoted(.hook).trim_matches('`'))]
    CustomHook { hook: String },
    /// A file type has no equivalent.
    #[error("its `file_types` name {}, which a step cannot select, at least not together with its other types", quoted(.name))]
    UnknownFileType { name: String },
    /// The directory is outside the repository.
    #[error("its `root` {} is not a directory below this one", quoted(.root))]
    InvalidRoot { root: String },
    /// The timeout is not a duration, or is zero.
    #[error("its `timeout` is {}", quoted(.text))]
    InvalidTimeout { text: String },
    /// The job reads standard input.
    #[error("it reads input from a user or from git (`{key}`), but a step has no input")]
    ReadsInput { key: &'static str },
    /// The job has no command, or both kinds.
    #[error("it has neither `run` nor `script`")]
    NoCommand,
    /// The command contains an argument of the git hook.
    #[error("its command has {}: an argument that git passes to a hook", quoted(.placeholder))]
    HookArgument { placeholder: String },
    /// The files come from a command that may list others than those of the tree.
    #[error("a custom command lists its files, which may not belong to a tree")]
    CustomFileList,
    /// The list of files would become a single word.
    #[error("its command has the list of files inside of quotes")]
    QuotedFiles,
    /// A script runs in another directory.
    #[error("it is a script with a `root`")]
    ScriptWithRoot,
    /// The arguments of a script contain placeholders or variables.
    #[error("the arguments of its script depend on the files of a commit")]
    ScriptArguments,
}
