//! Provides hints for agents, in terms of tool arguments. Hints appear outside the untrusted marks, so each is a
//! constant without text from a repository.

use proctor_core::api::Problem;

/// Hint for arguments that a tool does not accept.
pub(super) const ARGUMENTS: &str = "the tool's input schema (tools/list) describes its arguments.";

/// Hints by the name of a problem code, for problems whose general hint names command-line options or is too vague.
const BY_CODE: [(&str, &str); 17] = [
    (
        "engine::no_spec",
        "give the `repo_root` of a repository with a spec, or write `spec/verification.yaml` (`proctor init`).",
    ),
    ("engine::not_the_owner", "give the `repo_root` of a repository that belongs to the caller."),
    (
        "engine::store",
        "create the directory `changes/<changeset_id>/` with its `00-meta.json`, or leave out `changeset_id`; the details name other causes, such as a full disk.",
    ),
    ("engine::no_earlier_run", "verify the whole profile once: leave out `skills`."),
    ("engine::partial_changeset", "leave out `changeset_id`, or `skills`, `steps` and `changed_since`."),
    ("engine::scope", "use names of the spec in `steps`, and a revision of the repository in `changed_since`."),
    ("engine::watch", "raise the limits of inotify that the details name."),
    ("engine::changeset_below_top", "leave out `changeset_id`, or give the `repo_root` of the whole repository."),
    ("engine::best_effort_forbidden", "the operator sets this limit in `proctord.toml`."),
    ("engine::state_in_repository", "the operator must move the state directory out of the repository."),
    ("request::invalid", ARGUMENTS),
    ("request::not_found", "antigravity_verify starts a run; `resources/list` lists the runs."),
    ("request::forbidden", "use a repository or a run that belongs to the caller."),
    ("request::unprocessable", "correct the errors in the details, then call again."),
    ("request::too_many", "wait until runs have ended, or cancel runs with antigravity_verify_cancel."),
    ("request::too_large", "send less."),
    (
        "request::unavailable",
        "`proctor daemon status` reports the state of the daemon, and `proctor doctor` the state of the machine.",
    ),
];

/// Returns the hint for a problem.
pub(super) fn for_problem(problem: &Problem) -> &'static str {
    let code = problem.code();
    let found = BY_CODE.iter().find(|(name, _)| *name == code.name());
    found.map_or(code.explanation().remedy, |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use proctor_core::api::ProblemType;
    use proctor_core::code;

    use super::*;

    #[test]
    fn hints_name_no_command_line_options() {
        let is_met = |name: &str| ["engine::", "request::", "run::"].iter().any(|family| name.starts_with(family));
        for code in code::all().iter().filter(|code| is_met(code.name())) {
            let problem = Problem::new(ProblemType::Internal, "x").with_hint("`--changeset`").with_code(*code);
            let hint = for_problem(&problem);
            assert!(!hint.contains("--") && !hint.contains('\n'), "{code} {}: {hint}", code.name());
        }
    }

    #[test]
    fn every_code_with_a_hint_exists() {
        for (name, _) in BY_CODE {
            assert!(code::ErrorCode::find(name).is_some(), "{name}");
        }
    }
}
