//! Generates the text of our hooks, and recognises the owner of an existing hook by its text. This module is pure.

use proctor_core::spec;
use proctor_core::text::digest::Sha256Hex;

use crate::args::{HookName, HookOptions};

/// Largest file that is read as a hook, in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// Suffix of the file name under which a previous hook is kept.
pub(super) const BEFORE: &str = ".before-proctor";
/// Start of the second line of our hooks.
const MARK: &str = "# Made by `proctor hook install`, proctor ";
/// Start of the third line, before the digest of the rest.
const DIGEST: &str = "# sha256 of what follows: ";
/// Start of the fourth line, before the options.
const OPTIONS: &str = "# options: ";

/// The option that verifies each spec of a commit.
pub(super) const EACH_SPEC: &str = "--each-spec";

/// A hook to write.
#[derive(Debug)]
pub(super) struct HookScript<'a> {
    /// The kind of hook.
    pub hook: HookName,
    /// The options of `proctor hook run`.
    pub options: &'a HookOptions,
    /// The absolute path of the program.
    pub program: &'a str,
    /// True if other repositories use the hook too.
    pub shared: bool,
}

impl HookScript<'_> {
    /// Returns the script.
    pub(super) fn text(&self) -> String {
        let body = self.body();
        let version = env!("CARGO_PKG_VERSION");
        format!("#!/bin/sh\n{MARK}{version}\n{DIGEST}{}\n{body}", Sha256Hex::digest(body.as_bytes()))
    }

    fn body(&self) -> String {
        let (name, words) = (self.hook.as_str(), option_words(self.hook, self.options));
        let (before, program) = (self.previous_hook_lines(), shell_quote(self.program));
        let elsewhere = if self.shared { skip_without_spec(self.hook, self.options.each_spec) } else { String::new() };
        format!(
            r#"{OPTIONS}{words}
# `proctor hook uninstall {name}` removes this hook and restores the previous one.
{before}{elsewhere}proctor={program}
[ -x "$proctor" ] || proctor=$(command -v proctor) || {{
  echo 'error: nothing is verified: `proctor` is neither at the path with which this hook was installed nor on PATH' >&2
  echo "hint: install proctor again, or remove this hook ($0), or skip it once with --no-verify" >&2
  exit 5
}}
{run}"#,
            run = self.exec_lines(&words),
        )
    }

    /// Returns the lines that run a previous hook first, with the same arguments and input; its failure ends the
    /// script.
    fn previous_hook_lines(&self) -> String {
        match self.hook {
            HookName::PrePush => format!(
                r#"lines=$(cat && echo .) || exit
lines=${{lines%.}}
if [ -x "$0{BEFORE}" ]; then
  printf %s "$lines" 2>/dev/null | "$0{BEFORE}" "$@" || exit
fi
"#
            ),
            HookName::PreCommit => format!("if [ -x \"$0{BEFORE}\" ]; then\n  \"$0{BEFORE}\" \"$@\" || exit\nfi\n"),
        }
    }

    fn exec_lines(&self, words: &str) -> String {
        let name = self.hook.as_str();
        match self.hook {
            // The script has already consumed the input, so a here-document passes it on. A pipe would not allow
            // `exec`, which makes `proctor` the process that git started and that receives its signals.
            HookName::PrePush => format!(
                r#"[ -n "$lines" ] || exit 0
exec "$proctor" hook run {name} {words} -- "$@" <<end
${{lines%?}}
end
"#
            ),
            HookName::PreCommit => format!("exec \"$proctor\" hook run {name} {words} -- \"$@\"\n"),
        }
    }
}

/// Returns the lines that skip a repository without a spec. The worktree alone does not decide: it can be a worktree of
/// another branch, or lack files of the pushed or staged tree. A tree that git cannot read counts as one with a spec, so
/// that `proctor` reports the problem.
fn skip_without_spec(hook: HookName, each_spec: bool) -> String {
    // `git ls-tree` has no patterns, and quotes unusual paths.
    let in_commit = match each_spec {
        true => {
            r#"in_commit() { found=$(git ls-tree -r --full-tree --name-only "$1" 2>/dev/null) || return "$2"; printf '%s\n' "$found" | grep -Eq "(^|/)$spec\"?\$"; }"#
        }
        false => {
            r#"in_commit() { found=$(git ls-tree --full-tree --name-only "$1" -- "$spec" 2>/dev/null) || return "$2"; [ -n "$found" ]; }"#
        }
    };
    let in_push = r#"in_push() {
  while read -r line; do
    old=${line##* } line=${line% *} line=${line% *} new=${line##* }
    case $new in *[!0]*) in_commit "$new" 0 && return ;; esac
    case $old in *[!0]*) in_commit "$old" 1 && return ;; esac
  done <<end
${lines%?}
end
  return 1
}
[ -e "$spec" ] || in_push"#;
    let in_head = r#"git cat-file -e "HEAD:$spec" 2>/dev/null"#;
    let condition = match (hook, each_spec) {
        (HookName::PrePush, _) => format!("{in_commit}\n{in_push}"),
        (HookName::PreCommit, false) => format!(
            r#"staged=$(git ls-files -- "$spec") || staged=unknown
[ -e "$spec" ] || [ -n "$staged" ] || {in_head}"#
        ),
        (HookName::PreCommit, true) => format!(
            r#"{in_commit}
staged=$(git ls-files -- ":(glob)**/$spec") || staged=unknown
[ -e "$spec" ] || [ -n "$staged" ] || in_commit HEAD 1"#
        ),
    };
    let spec = spec::PATH;
    let place = if each_spec { " or in a subdirectory" } else { "" };
    format!(
        "spec={spec}\n{condition} || {{ echo 'proctor: there is no {spec} here{place}, and nothing is verified' >&2; exit 0; }}\n"
    )
}

/// Formats the options as shell words; profile names need no quotes.
fn option_words(hook: HookName, options: &HookOptions) -> String {
    let mut words = vec!["--profile", options.profile.as_str()];
    if hook == HookName::PrePush {
        words.extend(options.push_options());
    }
    words.extend(options.fresh.then_some("--fresh"));
    words.extend(options.all_files.then_some("--all-files"));
    words.extend(options.each_spec.then_some(EACH_SPEC));
    words.extend(options.affected_specs.then_some("--affected-specs"));
    words.join(" ")
}

/// Quotes a text as one shell word.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The owner of an existing hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookOwner {
    /// One of Proctor's hooks, unchanged.
    Proctor(ProctorHook),
    /// One of Proctor's hooks, edited.
    EditedProctor,
    /// The hook of another hook manager.
    Manager(HookManager),
    /// Any other hook.
    Unknown,
}

/// The metadata in one of Proctor's hooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProctorHook {
    /// The version that wrote the hook.
    pub version: String,
    /// The options of `proctor hook run`.
    pub options: String,
    /// The program that the hook tries first.
    pub program: String,
}

/// A program that manages the hooks of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookManager {
    Husky,
    Lefthook,
    PreCommit,
    Prek,
    GitLfs,
    Overcommit,
    SimpleGitHooks,
}

impl HookManager {
    /// Returns the name of the program.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Husky => "husky",
            Self::Lefthook => "lefthook",
            Self::PreCommit => "pre-commit",
            Self::Prek => "prek",
            Self::GitLfs => "git-lfs",
            Self::Overcommit => "overcommit",
            Self::SimpleGitHooks => "simple-git-hooks",
        }
    }

    /// Returns the command with which the program rewrites its hooks and would overwrite ours.
    pub(super) fn rewrite_command(self) -> Option<&'static str> {
        match self {
            Self::Lefthook => Some("lefthook install"),
            Self::PreCommit => Some("pre-commit install"),
            Self::Prek => Some("prek install"),
            Self::Overcommit => Some("overcommit --install"),
            Self::SimpleGitHooks => Some("npx simple-git-hooks"),
            Self::GitLfs => Some("git lfs install --force"),
            Self::Husky => None,
        }
    }

    /// Recognises a manager by typical text in its hook. Text that occurs in hooks of several managers is tested
    /// last.
    fn detect(text: &str) -> Option<Self> {
        const MARKERS: [(&str, HookManager); 8] = [
            ("File generated by prek", HookManager::Prek),
            ("File generated by pre-commit", HookManager::PreCommit),
            ("call_lefthook", HookManager::Lefthook),
            ("Overcommit hook", HookManager::Overcommit),
            ("simple-git-hooks", HookManager::SimpleGitHooks),
            ("husky.sh", HookManager::Husky),
            ("# husky", HookManager::Husky),
            ("git lfs ", HookManager::GitLfs),
        ];
        MARKERS.into_iter().find(|(word, _)| text.contains(word)).map(|(_, manager)| manager)
    }
}

/// Returns the owner of a hook.
pub(super) fn detect_owner(bytes: &[u8]) -> HookOwner {
    let text = String::from_utf8_lossy(bytes);
    if !text.lines().nth(1).is_some_and(|line| line.starts_with(MARK)) {
        return HookManager::detect(&text).map_or(HookOwner::Unknown, HookOwner::Manager);
    }
    parse_proctor_hook(&text).map_or(HookOwner::EditedProctor, HookOwner::Proctor)
}

/// Parses one of Proctor's hooks; returns `None` if the digest does not match.
fn parse_proctor_hook(text: &str) -> Option<ProctorHook> {
    let (version, rest) = text.strip_prefix("#!/bin/sh\n")?.strip_prefix(MARK)?.split_once('\n')?;
    let (digest, body) = rest.strip_prefix(DIGEST)?.split_once('\n')?;
    if Sha256Hex::digest(body.as_bytes()).to_string() != digest {
        return None;
    }
    let options = body.lines().next()?.strip_prefix(OPTIONS)?;
    let program = body.lines().find_map(|line| line.strip_prefix("proctor='")?.strip_suffix('\''))?;
    Some(ProctorHook {
        version: version.to_owned(),
        options: options.to_owned(),
        program: program.replace(r"'\''", "'"),
    })
}

/// Checks whether the hook of another owner calls `proctor hook run`.
pub(super) fn has_proctor_call(bytes: &[u8], hook: HookName) -> bool {
    String::from_utf8_lossy(bytes).contains(&format!("proctor hook run {}", hook.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::model::names::ProfileName;

    fn options() -> HookOptions {
        HookOptions {
            profile: ProfileName::new("pr").expect("a name"),
            each_commit: false,
            submodules: false,
            fresh: false,
            all_files: false,
            each_spec: false,
            affected_specs: false,
        }
    }

    #[test]
    fn recognizes_proctor_hooks_and_edits() {
        let options = HookOptions { each_commit: true, ..options() };
        for hook in HookName::ALL {
            let script = HookScript {
                hook,
                options: &options,
                program: "/a b/it's/proctor",
                shared: hook == HookName::PreCommit,
            };
            let text = script.text();
            let HookOwner::Proctor(ours) = detect_owner(text.as_bytes()) else { panic!("{text}") };
            // An option for pushed commits would make each commit fail.
            let expected = if hook == HookName::PrePush { "--profile pr --each-commit" } else { "--profile pr" };
            assert_eq!((ours.program.as_str(), ours.options.as_str()), (script.program, expected));
            assert_eq!(detect_owner(format!("{text}\necho more\n").as_bytes()), HookOwner::EditedProctor);
            assert_eq!(detect_owner(text.replace("--profile pr", "--profile x").as_bytes()), HookOwner::EditedProctor);
            assert!(has_proctor_call(text.replace("\"$proctor\"", "proctor").as_bytes(), hook));
        }
    }

    #[test]
    fn generates_each_hook() {
        let options = options();
        let text = |hook| HookScript { hook, options: &options, program: "/usr/bin/proctor", shared: false }.text();
        insta::assert_snapshot!(text(HookName::PrePush).replace(env!("CARGO_PKG_VERSION"), "VERSION"));
        let shared =
            HookScript { hook: HookName::PreCommit, options: &options, program: "/usr/bin/proctor", shared: true };
        insta::assert_snapshot!(shared.text().replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn recognizes_hook_managers_by_their_text() {
        let cases = [
            (
                "#!/usr/bin/env bash\n# File generated by pre-commit: https://pre-commit.com\n",
                HookOwner::Manager(HookManager::PreCommit),
            ),
            (
                "#!/bin/sh\n# File generated by prek: https://github.com/j178/prek\n",
                HookOwner::Manager(HookManager::Prek),
            ),
            ("#!/bin/sh\ncall_lefthook run \"pre-push\" \"$@\"\n", HookOwner::Manager(HookManager::Lefthook)),
            ("#!/bin/sh\n. \"$(dirname -- \"$0\")/_/husky.sh\"\n", HookOwner::Manager(HookManager::Husky)),
            ("#!/bin/sh\ngit lfs pre-push \"$@\"\n", HookOwner::Manager(HookManager::GitLfs)),
            ("#!/bin/sh\nmake test\n", HookOwner::Unknown),
            ("\u{7f}ELF\0", HookOwner::Unknown),
            ("", HookOwner::Unknown),
        ];
        for (text, expected) in cases {
            assert_eq!(detect_owner(text.as_bytes()), expected, "{text}");
        }
    }
}
