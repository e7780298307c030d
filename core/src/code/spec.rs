//! Codes of specs and of the operator's config.

use super::codes;
use crate::spec::Code;

codes! { Code;
    TooLarge, 101, "spec::too_large",
        "The file has more bytes than a spec may have: 1 MiB.",
        "What is read before every run is bounded before it costs anything.",
        "Move what the steps do into scripts of the repository.",
        "steps:\n  - { name: checks, cmd: [\"sh\", \"scripts/check.sh\"] }";
    NotUtf8, 102, "spec::not_utf8",
        "The file is not UTF-8.",
        "In another encoding readers would see different words.",
        "Save it as UTF-8.",
        "$ iconv -f latin1 -t utf-8 spec/verification.yaml";
    ForbiddenCharacter, 103, "spec::forbidden_character",
        "The file holds a control character, or one that readers of YAML take for different things.",
        "What a person sees must be what is read.",
        "Remove it, or write it as an escape in double quotes.",
        "env: { SEPARATOR: \"\\u0007\" }";
    Syntax, 104, "spec::syntax",
        "The file is no YAML.",
        "Nothing of it can be believed from there on.",
        "Mend the place that the caret shows: indentation and quotes, most often.",
        "steps:\n  - name: fmt\n    cmd: [\"cargo\", \"fmt\", \"--check\"]";
    Empty, 105, "spec::empty",
        "There is nothing in the file.",
        "A spec without checks checks nothing.",
        "Write one, or have one written.",
        "$ proctor init";
    TooDeep, 106, "spec::too_deep",
        "Values are nested deeper than 64 levels.",
        "No spec needs that, and readers break at it.",
        "Flatten it.",
        "skills:\n  a:\n    steps: [{ name: s, cmd: [\"true\"] }]";
    TooManyValues, 107, "spec::too_many_values",
        "The file holds more values than a spec may have.",
        "What is read before every run is bounded.",
        "Split the checks into scripts of the repository.",
        "steps:\n  - { name: checks, cmd: [\"sh\", \"scripts/check.sh\"] }";
    Alias, 108, "spec::alias",
        "The file uses a YAML anchor or alias.",
        "A few bytes of them can stand for gigabytes, and hide what a step really is.",
        "Write the value out, or put what steps share into `defaults`.",
        "defaults: { timeout_ms: 60000 }";
    Tag, 109, "spec::tag",
        "The file uses a YAML tag such as `!!python/object`.",
        "Tags have other meanings in other readers.",
        "Write the value as it is.",
        "timeout_ms: 60000";
    Directive, 110, "spec::directive",
        "The file uses a `%` directive.",
        "It would change how the rest is read.",
        "Remove the line.",
        "version: 1";
    SecondDocument, 111, "spec::second_document",
        "A second document follows in the same file.",
        "Some readers take the first, some the last.",
        "Keep one; remove the `---` and what follows it.",
        "version: 1";
    ComplexKey, 112, "spec::complex_key",
        "A key is a list or a map.",
        "No key of a spec is one.",
        "Write a plain key.",
        "env: { NAME: value }";
    DuplicateKey, 113, "spec::duplicate_key",
        "A key stands twice in one map.",
        "Readers disagree about which of them counts.",
        "Remove one.",
        "defaults:\n  timeout_ms: 60000";
    ReadersDisagree, 114, "spec::readers_disagree",
        "Two readers of YAML read different things in this file.",
        "What a person, an editor and Proctor see must be the same.",
        "Write the place plainer: quote strings, avoid odd indentation.",
        "cmd: [\"echo\", \"a: b\"]";
    TooManyProblems, 115, "spec::too_many_problems",
        "More is wrong than is listed.",
        "A list without an end helps nobody.",
        "Mend what is listed and look again.",
        "$ proctor validate";
    UnknownKey, 116, "spec::unknown_key",
        "A key means nothing where it stands.",
        "A misspelt key that is passed over leaves a check as it is not meant.",
        "Write one of the keys that the hint lists.",
        "steps:\n  - { name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"], timeout_ms: 60000 }";
    MissingKey, 117, "spec::missing_key",
        "A key that must be there is not.",
        "There is no sensible default for it.",
        "Add it.",
        "skills:\n  verify.fmt:\n    steps: [{ name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"] }]";
    WrongType, 118, "spec::wrong_type",
        "A value is of another type than the one expected: a string where a number stands, say.",
        "Turning one into the other silently hides mistakes.",
        "Write a value of the type that the message names.",
        "timeout_ms: 60000";
    BadValue, 119, "spec::bad_value",
        "A value is not one of those allowed there.",
        "Anything else would have no meaning.",
        "Write one of those that the hint lists.",
        "network: deny";
    BadName, 120, "spec::bad_name",
        "A name has characters that it may not have.",
        "Names become names of files and words on screens.",
        "Use letters, digits, `_`, `.` and `-`; variables are `A-Z`, `0-9` and `_`.",
        "steps:\n  - { name: unit_tests, cmd: [\"make\", \"test\"] }";
    BadPath, 121, "spec::bad_path",
        "A path does not lie below the repository.",
        "A spec speaks of its own tree and of nothing else.",
        "Write it relative to the repository, without `..`.",
        "workdir: services/api";
    SqlStep, 122, "spec::sql_step",
        "The step's `sql` is not as it must be: beside a `cmd`, without something to judge, or with a bound that is none.",
        "A step that judges nothing would look like a pass.",
        "Give `sql` either `files` or a `query`, and no `cmd` beside it.",
        "steps:\n  - { name: queries, sql: { dialect: sqlite, files: [\"queries/*.sql\"], schema: [schema.sql] } }";
    UnsupportedVersion, 123, "spec::unsupported_version",
        "The spec says that it is of another version of the format than 1.",
        "What another version means is not known to this program.",
        "Write `version: 1`, or use the newer Proctor that it was written for.",
        "version: 1";
    EmptyProfile, 124, "spec::empty_profile",
        "A profile includes no skill.",
        "A run of it would run nothing, and nothing is no pass.",
        "Include a skill, or remove the profile.",
        "profiles:\n  pr: { include: [verify.fmt] }";
    UnknownSkill, 125, "spec::unknown_skill",
        "A profile includes a skill that is not there.",
        "What was meant to be checked would not be.",
        "Write the name of a skill; the hint offers the nearest.",
        "profiles:\n  pr: { include: [verify.fmt] }";
    DuplicateInclude, 126, "spec::duplicate_include",
        "A profile includes a skill twice.",
        "It runs once; the second time means nothing.",
        "Remove one.",
        "profiles:\n  pr: { include: [verify.fmt, verify.lint] }";
    NoSteps, 127, "spec::no_steps",
        "A skill has no step.",
        "It would pass without having checked anything.",
        "Give it a step, or remove it.",
        "skills:\n  verify.fmt:\n    steps: [{ name: fmt, cmd: [\"cargo\", \"fmt\", \"--check\"] }]";
    DuplicateStep, 128, "spec::duplicate_step",
        "Two steps of a skill have one name.",
        "Evidence and logs name a step by it.",
        "Rename one.",
        "steps:\n  - { name: unit, cmd: [\"make\", \"unit\"] }\n  - { name: e2e, cmd: [\"make\", \"e2e\"] }";
    TierThree, 129, "spec::tier_three",
        "A skill declares tier 3.",
        "Tier 3 is never declared: it is what a violation makes of a run.",
        "Declare 1 or 2.",
        "tier: 2";
    EmptyCommand, 130, "spec::empty_command",
        "A command has no program.",
        "There is nothing to run.",
        "Name one.",
        "cmd: [\"make\", \"check\"]";
    NeedsShell, 131, "spec::needs_shell",
        "A command is a string that only a shell could run: it has a pipe, `&&`, `$X` or the like.",
        "Split at spaces it would run something else than what it says.",
        "Say aloud that a shell runs it.",
        "cmd: [\"sh\", \"-c\", \"git ls-files '*.sh' | xargs shellcheck\"]";
    BadCommand, 132, "spec::bad_command",
        "A command string cannot be split into words: a quote is not closed, say.",
        "Where its words end is not known.",
        "Close the quote, or write a list.",
        "cmd: [\"grep\", \"it's\", \"README.md\"]";
    Zero, 133, "spec::zero",
        "A bound is 0 where something must be able to run.",
        "Every step would fail at once.",
        "Leave it out for the default, or write a bound.",
        "timeout_ms: 60000";
    UnknownNeed, 134, "spec::unknown_need",
        "A skill needs one that is not there.",
        "Its layers could not be built.",
        "Write the name of a skill.",
        "verify.test: { needs: [build], steps: [{ name: t, cmd: [\"make\", \"test\"] }] }";
    SelfNeed, 135, "spec::self_need",
        "A skill needs itself.",
        "It could never start.",
        "Remove it from its own `needs`.",
        "needs: [build]";
    DuplicateNeed, 136, "spec::duplicate_need",
        "A skill needs another twice.",
        "The second time means nothing.",
        "Remove one.",
        "needs: [build]";
    NeedCycle, 137, "spec::need_cycle",
        "Skills need each other in a circle.",
        "None of them could start first.",
        "Break the circle at one of the places that are shown.",
        "build: { needs: [] }\ntest: { needs: [build] }";
    NeedNotIncluded, 138, "spec::need_not_included",
        "A profile includes a skill without one that it needs.",
        "What it builds on would not be there.",
        "Add the needed skill to `include`.",
        "profiles:\n  pr: { include: [build, test] }";
    ArtifactClash, 139, "spec::artifact_clash",
        "Two skills would write their evidence to one file.",
        "One would replace the other.",
        "Rename one of them: in file names, characters other than letters, digits, `.`, `_` and `-` become `_`.",
        "verify.lint: { steps: [{ name: l, cmd: [\"make\", \"lint\"] }] }";
    BadVersionRange, 140, "spec::bad_version_range",
        "A version range is none.",
        "No version could be compared with it.",
        "Write a range as Cargo has them.",
        "required: [{ cmd: [\"node\", \"--version\"], version: \">=20, <23\" }]";
    BadGlob, 141, "spec::bad_glob",
        "A glob is none.",
        "Which files are meant is not known.",
        "Close its brackets and braces.",
        "inputs: [\"src/**/*.rs\", \"Cargo.{toml,lock}\"]";
    EmptyList, 142, "spec::empty_list",
        "A list is empty that must not be.",
        "An empty list of exit codes passes nothing; an empty list of inputs depends on nothing.",
        "Fill it, or leave it out for the default.",
        "expect: { exit: [0, 1] }";
    BadCache, 143, "spec::bad_cache",
        "A cache would hide the repository or its git directory.",
        "Steps would not see the tree that is verified.",
        "Name a directory that git ignores.",
        "caches: [target]";
    UnusedSkill, 144, "spec::unused_skill",
        "No profile includes a skill.",
        "A warning only: it is never run, which may not be meant.",
        "Include it, or remove it.",
        "profiles:\n  pr: { include: [verify.fmt, verify.lint] }";
    NoChecks, 145, "spec::no_checks",
        "A toolchain checks nothing.",
        "A warning only: it proves nothing.",
        "Give it a check, or remove it.",
        "toolchains:\n  rust: { required: [{ cmd: [\"cargo\", \"--version\"] }] }";
    IdleParallel, 146, "spec::idle_parallel",
        "`parallel` changes nothing, because no skill of the profile uses `needs`.",
        "A warning only: without `needs`, skills run in the order of `include`.",
        "Say by `needs` what depends on what, or remove `parallel`.",
        "verify.lint: { needs: [], steps: [{ name: l, cmd: [\"make\", \"lint\"] }] }";
    UnknownProfile, 147, "spec::unknown_profile",
        "The profile that was asked for is not there.",
        "Another one would not be what was asked for.",
        "Name one of those that the hint lists.",
        "$ proctor run --profile pr";
    OverCeiling, 160, "operator::over_ceiling",
        "The spec asks for more than the operator of this machine allows.",
        "A repository never widens its own permissions, and never gets silently less than it asks for.",
        "Ask for less, or have the operator raise the ceiling.",
        "allow_network = true   # proctord.toml\nmax_timeout_ms = 900000";
    BadConfig, 161, "operator::bad_config",
        "The operator's config cannot be read, or contradicts itself.",
        "Without it, what may run here is not known.",
        "Mend the place that is shown; `proctor schema operator` has every key.",
        "$ proctor schema operator";
}
