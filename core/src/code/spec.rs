//! Codes of specs and of the operator's config.

use super::error_code::codes;
use crate::spec::Code;

codes! { Code;
    TooLarge, 101, "spec::too_large",
        "The file is larger than a spec may be: 1 MiB.",
        "Proctor reads the spec before every run, so its size is limited.",
        "Move the work of the steps into scripts in the repository.",
        "steps:\n  - { name: checks, cmd: [\"sh\", \"scripts/check.sh\"] }";
    NotUtf8, 102, "spec::not_utf8",
        "The file is not UTF-8.",
        "Programs that assume different encodings would read different text.",
        "Save it as UTF-8.",
        "$ iconv -f latin1 -t utf-8 spec/verification.yaml";
    ForbiddenCharacter, 103, "spec::forbidden_character",
        "The file contains a control character, or a character that YAML parsers interpret differently.",
        "The text on a user's screen must be the text that Proctor reads.",
        "Remove the character, or write it as an escape in double quotes.",
        "env: { SEPARATOR: \"\\u0007\" }";
    Syntax, 104, "spec::syntax",
        "The file is not valid YAML.",
        "Nothing after the syntax error can be interpreted reliably.",
        "Fix the text that the caret marks; the cause is usually indentation or quoting.",
        "steps:\n  - name: fmt\n    cmd: [\"cargo\", \"fmt\", \"--check\"]";
    Empty, 105, "spec::empty",
        "The file is empty.",
        "A spec without checks verifies nothing.",
        "Write a spec, or generate one.",
        "$ proctor init";
    TooDeep, 106, "spec::too_deep",
        "Values are nested deeper than 64 levels.",
        "No spec needs that depth, and many parsers fail at it.",
        "Flatten the structure.",
        "skills:\n  a:\n    steps: [{ name: s, cmd: [\"true\"] }]";
    TooManyValues, 107, "spec::too_many_values",
        "The file holds more values than a spec may have.",
        "Proctor reads the spec before every run, so the number of values is limited.",
        "Move checks into scripts in the repository.",
        "steps:\n  - { name: checks, cmd: [\"sh\", \"scripts/check.sh\"] }";
    Alias, 108, "spec::alias",
        "A YAML alias names no value before it, expands to too many values, or is merged with `<<` without being a map.",
        "A few bytes of aliases can expand to gigabytes.",
        "Write the value out, or put shared settings into `defaults`.",
        "steps: [&build { name: build, cmd: make }, { <<: *build, name: again }]";
    Tag, 109, "spec::tag",
        "The file uses a YAML tag such as `!!python/object`.",
        "Tags mean different things to different YAML parsers.",
        "Write the plain value.",
        "timeout_ms: 60000";
    Directive, 110, "spec::directive",
        "The file uses a `%` directive.",
        "A directive changes how the rest of the file is parsed.",
        "Remove the line.",
        "version: 1";
    SecondDocument, 111, "spec::second_document",
        "The file contains a second YAML document.",
        "Some parsers read the first document, others the last.",
        "Keep one document; remove the `---` and everything after it.",
        "version: 1";
    ComplexKey, 112, "spec::complex_key",
        "A key is a list or a map.",
        "Keys in a spec are always plain strings.",
        "Write a plain key.",
        "env: { NAME: value }";
    DuplicateKey, 113, "spec::duplicate_key",
        "A key occurs twice in one map.",
        "Parsers disagree about which occurrence counts.",
        "Remove one of them.",
        "defaults:\n  timeout_ms: 60000";
    ReadersDisagree, 114, "spec::readers_disagree",
        "Two YAML parsers read this file differently.",
        "A user, an editor and Proctor must read the same content.",
        "Write the passage more simply: quote strings, avoid unusual indentation.",
        "cmd: [\"echo\", \"a: b\"]";
    TooManyProblems, 115, "spec::too_many_problems",
        "The spec has more problems than Proctor lists.",
        "The list is limited so that it remains readable.",
        "Fix the listed problems and validate the spec again.",
        "$ proctor validate";
    UnknownKey, 116, "spec::unknown_key",
        "The key is not valid at this place.",
        "If Proctor ignored a misspelt key, the check would run without the intended setting.",
        "Use one of the keys in the hint.",
        "steps:\n  - { name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"], timeout_ms: 60000 }";
    MissingKey, 117, "spec::missing_key",
        "A required key is missing.",
        "The key has no sensible default.",
        "Add the key.",
        "skills:\n  verify.fmt:\n    steps: [{ name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"] }]";
    WrongType, 118, "spec::wrong_type",
        "A value has the wrong type, for instance a string instead of a number.",
        "Silent conversion hides mistakes.",
        "Write a value of the type that the message names.",
        "timeout_ms: 60000";
    BadValue, 119, "spec::bad_value",
        "A value is not one of the allowed values.",
        "Other values have no meaning here.",
        "Use one of the values in the hint.",
        "network: deny";
    BadName, 120, "spec::bad_name",
        "A name contains a character that is not allowed.",
        "Names are used in file names and in terminal output.",
        "Use letters, digits, `_`, `.` and `-`; variables are `A-Z`, `0-9` and `_`.",
        "steps:\n  - { name: unit_tests, cmd: [\"make\", \"test\"] }";
    BadPath, 121, "spec::bad_path",
        "A path is not below the repository.",
        "A spec may only refer to its own tree.",
        "Write the path relative to the repository, without `..`.",
        "workdir: services/api";
    SqlStep, 122, "spec::sql_step",
        "The step's `sql` is invalid: it is combined with `cmd`, has nothing to check, or has an invalid limit.",
        "A step that checks nothing would look like a pass.",
        "Give `sql` either `files` or a `query`, and do not combine it with `cmd`.",
        "steps:\n  - { name: queries, sql: { dialect: sqlite, files: [\"queries/*.sql\"], schema: [schema.sql] } }";
    UnsupportedVersion, 123, "spec::unsupported_version",
        "The spec declares a version of the format other than 1.",
        "This program does not support other versions.",
        "Write `version: 1`, or use the newer Proctor that the spec was written for.",
        "version: 1";
    EmptyProfile, 124, "spec::empty_profile",
        "A profile includes no skill.",
        "A run of the profile would verify nothing, and that must not count as a pass.",
        "Include a skill, or remove the profile.",
        "profiles:\n  pr: { include: [verify.fmt] }";
    UnknownSkill, 125, "spec::unknown_skill",
        "A profile includes a skill that does not exist.",
        "The intended check would not run.",
        "Use the name of an existing skill; the hint suggests the closest one.",
        "profiles:\n  pr: { include: [verify.fmt] }";
    DuplicateInclude, 126, "spec::duplicate_include",
        "A profile includes a skill twice.",
        "The skill runs once; the second entry has no effect.",
        "Remove one of the entries.",
        "profiles:\n  pr: { include: [verify.fmt, verify.lint] }";
    NoSteps, 127, "spec::no_steps",
        "A skill has no steps.",
        "It would pass without checking anything.",
        "Add a step, or remove the skill.",
        "skills:\n  verify.fmt:\n    steps: [{ name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"] }]";
    DuplicateStep, 128, "spec::duplicate_step",
        "Two steps of a skill have the same name.",
        "Evidence and logs identify a step by its name.",
        "Rename one of the steps.",
        "steps:\n  - { name: unit, cmd: [\"make\", \"unit\"] }\n  - { name: e2e, cmd: [\"make\", \"e2e\"] }";
    TierThree, 129, "spec::tier_three",
        "A skill or `defaults` declares tier 3.",
        "Tier 3 cannot be declared: Proctor assigns it to a run after a violation.",
        "Declare tier 1 or 2.",
        "tier: 2";
    EmptyCommand, 130, "spec::empty_command",
        "A command names no program.",
        "There is nothing to run.",
        "Name a program.",
        "cmd: [\"make\", \"check\"]";
    NeedsShell, 131, "spec::needs_shell",
        "A command is a string that only a shell could run: it has a pipe, `&&`, `$X` or the like.",
        "Split at spaces, the command would do something else.",
        "Call the shell explicitly.",
        "cmd: [\"sh\", \"-c\", \"git ls-files '*.sh' | xargs shellcheck\"]";
    BadCommand, 132, "spec::bad_command",
        "A command string cannot be split into words, for instance because a quote is not closed.",
        "The word boundaries are ambiguous.",
        "Close the quote, or write a list.",
        "cmd: [\"grep\", \"it's\", \"README.md\"]";
    Zero, 133, "spec::zero",
        "A limit is 0, so no step could run.",
        "Every step would fail immediately.",
        "Omit the limit to use the default, or set a larger one.",
        "timeout_ms: 60000";
    UnknownNeed, 134, "spec::unknown_need",
        "A skill needs a skill that does not exist.",
        "Proctor could not build the layers of the missing skill.",
        "Use the name of an existing skill.",
        "verify.test: { needs: [build], steps: [{ name: t, cmd: [\"make\", \"test\"] }] }";
    SelfNeed, 135, "spec::self_need",
        "A skill needs itself.",
        "It could never start.",
        "Remove the skill from its own `needs`.",
        "needs: [build]";
    DuplicateNeed, 136, "spec::duplicate_need",
        "A skill lists the same needed skill twice.",
        "The second entry has no effect.",
        "Remove one of the entries.",
        "needs: [build]";
    NeedCycle, 137, "spec::need_cycle",
        "Skills need each other in a cycle.",
        "None of them could start first.",
        "Break the cycle at one of the places shown.",
        "build: { needs: [] }\ntest: { needs: [build] }";
    NeedNotIncluded, 138, "spec::need_not_included",
        "A profile includes a skill but not a skill that it needs.",
        "The results that the skill builds on would be missing.",
        "Add the needed skill to `include`.",
        "profiles:\n  pr: { include: [build, test] }";
    ArtifactClash, 139, "spec::artifact_clash",
        "Two skills would write their evidence to the same file.",
        "One file would overwrite the other.",
        "Rename one skill: file names keep letters, digits, `.`, `_` and `-`; other characters become `_`.",
        "verify.lint: { steps: [{ name: l, cmd: [\"make\", \"lint\"] }] }";
    BadVersionRange, 140, "spec::bad_version_range",
        "A version range is invalid.",
        "No version could be compared with it.",
        "Use Cargo's syntax for version ranges.",
        "required: [{ cmd: [\"node\", \"--version\"], version: \">=20, <23\" }]";
    BadGlob, 141, "spec::bad_glob",
        "A glob pattern is invalid.",
        "The pattern selects no definite set of files.",
        "Close its brackets and braces.",
        "inputs: [\"src/**/*.rs\", \"Cargo.{toml,lock}\"]";
    EmptyList, 142, "spec::empty_list",
        "A list that must not be empty is empty.",
        "No exit code would pass with an empty list, and empty inputs would match no file.",
        "Add an entry, or omit the list to use the default.",
        "expect: { exit: [0, 1] }";
    BadCache, 143, "spec::bad_cache",
        "A cache would hide the repository or its git directory, or is declared as transparent and as not transparent.",
        "Steps would not see the tree that Proctor verifies, or it is not clear whether their results can be reused.",
        "Name each directory once, and only directories that git ignores.",
        "caches: [{ path: target, transparent: true }, out]";
    BadNeededPath, 155, "spec::bad_needed_path",
        "A path in `needs_paths` would hide the repository, overlaps another mount, or has an invalid key.",
        "Steps would not see the tree that Proctor verifies, or would see content that nothing determines.",
        "Name a directory that git ignores, and the tracked files that determine its content.",
        "needs_paths: [{ path: .venv, key: [uv.lock, pyproject.toml] }]";
    UnknownToolchain, 156, "spec::unknown_toolchain",
        "A skill names a toolchain that the spec does not define, or names one twice.",
        "The check of the tool would be missing.",
        "Use a name of `toolchains`.",
        "toolchains:\n  python: { required: [{ cmd: [\"python3\", \"--version\"] }] }\nskills:\n  verify.test: { toolchains: [python] }";
    UnusedSkill, 144, "spec::unused_skill",
        "A skill is not part of any profile.",
        "This is only a warning: the skill never runs, which may be a mistake.",
        "Include the skill, or remove it.",
        "profiles:\n  pr: { include: [verify.fmt, verify.lint] }";
    NoChecks, 145, "spec::no_checks",
        "A toolchain has no checks.",
        "This is only a warning: the toolchain proves nothing.",
        "Add a check, or remove the toolchain.",
        "toolchains:\n  rust: { required: [{ cmd: [\"cargo\", \"--version\"] }] }";
    IdleParallel, 146, "spec::idle_parallel",
        "`parallel` has no effect because no skill of the profile uses `needs`.",
        "This is only a warning: without `needs`, skills run in the order of `include`.",
        "Declare dependencies with `needs`, or remove `parallel`.",
        "verify.lint: { needs: [], steps: [{ name: l, cmd: [\"make\", \"lint\"] }] }";
    BadInclude, 170, "spec::bad_include",
        "A file under `include` does not exist, cannot be read, or is outside of the repository.",
        "A spec that is only partly read would run only part of its checks.",
        "Write a path relative to the file that contains the `include`.",
        "include: [lint.yaml, ../../common/toolchains.yaml]";
    DuplicateDefinition, 171, "spec::duplicate_definition",
        "Two files of one spec define the same toolchain, skill, profile or default.",
        "The result would depend on the order of the files.",
        "Rename or remove one of the two.",
        "skills:\n  lint.shell: { steps: [{ name: check, cmd: [shellcheck, run.sh] }] }";
    UnknownProfile, 147, "spec::unknown_profile",
        "The requested profile does not exist.",
        "Another profile would run other checks.",
        "Use one of the profiles in the hint.",
        "$ proctor run --profile pr";
    BadFiles, 148, "spec::bad_files",
        "A rule for the files of a step is invalid.",
        "The rules would choose other files than intended, so files would go unchecked.",
        "Write globs, regular expressions after `regex:`, and the file types of pre-commit; in `cmd`, `{files}` is a \
         separate word.",
        "files: { include: [\"src/**/*.py\", \"regex:^tests/.*_data/\"], types: [python] }\ncmd: [ruff, check, \"{files}\"]";
    NoFiles, 149, "spec::no_files",
        "A step without `files` uses `{files}` or `parallel`.",
        "This is only a warning: the word is passed on as it is, and `parallel` has no effect.",
        "Add `files` to the step.",
        "files: { types: [python] }";
    OverCeiling, 160, "operator::over_ceiling",
        "The spec requests more than the operator of this machine allows.",
        "A repository cannot widen its own permissions, and Proctor never silently reduces a request.",
        "Request less, or ask the operator to raise the limit.",
        "allow_network = true   # proctord.toml\nmax_timeout_ms = 900000";
    BadConfig, 161, "operator::bad_config",
        "The operator's configuration cannot be read, or contradicts itself.",
        "Without it, Proctor does not know what may run on this machine.",
        "Fix the value at the reported position; `proctor schema operator` describes every key.",
        "$ proctor schema operator";
}
