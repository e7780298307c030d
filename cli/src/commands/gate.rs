//! Implements `proctor gate`, which checks whether exactly this tree has already been verified. Nothing runs.

use std::path::{Path, PathBuf};

use proctor_core::api::GateQuery;
use proctor_core::decision::gate::{
    AgeLimits, GateAnswer, GateFinding, GateRequirements, GateRun, InputRequirement, MachineRequirement, MaxAge,
    UnattestedPolicy,
};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use proctor_core::spec::OperatorConfig;
use proctor_runner::{Clock, Gate, GateRequest};

use crate::args::{GateArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, BackendCriteria, ReachableDaemon, client_error};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::human_report::serialized_name;
use crate::installation;
use crate::screen::Screen;
use crate::style::{self, BAD, GOOD, UNSURE, paint};
use crate::text::{count, duration, escape_line};

/// Number of paths of one finding that are shown.
const SHOWN_PATHS: usize = 10;

/// Evaluates the gate and shows its findings.
///
/// # Errors
/// The repository, a valid spec, the profile or the changeset is missing, or the tree cannot be read.
pub(crate) async fn gate(args: &GateArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.backend.operator, caller)?;
    let wanted = BackendCriteria { options: &args.backend, operator: &operator, repo: &repo };
    let answer = match daemon::select_backend(wanted, caller, screen).await? {
        Some(daemon) => evaluate_in_daemon(&daemon, args, &repo).await,
        None => evaluate_in_process(args, operator, repo, caller),
    };
    let answer = answer.map_err(|error| error.with_path_relative_to(&caller.cwd))?;
    match args.format {
        OutputFormat::Human => screen.out(&render(&answer)),
        OutputFormat::Json => screen.out_canonical(&answer),
    }
    Ok(answer.exit_code)
}

fn evaluate_in_process(
    args: &GateArgs,
    operator: OperatorConfig,
    repo: PathBuf,
    caller: &Caller,
) -> Result<GateAnswer, CliError> {
    let gate = Gate::new(engine::config(&args.backend.state, operator, caller)?, Clock::system());
    let demands = GateRequirements {
        profile: args.profile.clone(),
        changeset: args.changeset.clone(),
        max_tier: args.max_tier,
        max_age: AgeLimits::requested(args.max_age),
        unattested: if args.accept_unattested { UnattestedPolicy::Accept } else { UnattestedPolicy::Refuse },
        max_cache_trust: args.max_cache_trust,
        inputs: InputRequirement::from_strict(args.strict_inputs),
        machines: MachineRequirement::from_flag(args.this_machine),
    };
    gate.check(&GateRequest { repo, demands }).map_err(engine_error)
}

async fn evaluate_in_daemon(daemon: &ReachableDaemon, args: &GateArgs, repo: &Path) -> Result<GateAnswer, CliError> {
    let request = GateQuery {
        repo: daemon::repo_utf8(repo)?,
        profile: args.profile.clone(),
        changeset_id: args.changeset.clone(),
        max_tier: args.max_tier,
        max_age: args.max_age.map(format_max_age),
        accept_unattested: args.accept_unattested,
        max_cache_trust: args.max_cache_trust,
        strict_inputs: args.strict_inputs,
        this_machine: args.this_machine,
    };
    let answer = daemon.client.gate(&request).await.map_err(client_error)?;
    if answer.pass != (answer.exit_code == 0) {
        return Err(CliError::Internal("the gate's answer contradicts itself".to_owned()));
    }
    Ok(answer)
}

/// Formats an age limit in the syntax that the daemon parses.
fn format_max_age(age: MaxAge) -> String {
    match age {
        MaxAge::Unlimited => "unlimited".to_owned(),
        MaxAge::Within(bound) => format!("{}s {}ns", bound.as_secs(), bound.subsec_nanos()),
    }
}

/// Renders an answer as human-readable text: findings, hints, and the answer as the last line.
fn render(answer: &GateAnswer) -> String {
    let mut text: String = answer.findings.iter().map(finding_block).collect();
    if answer.omitted > 0 {
        text.push_str(&format!("and {} more\n", answer.omitted));
    }
    let mut hints: Vec<String> = Vec::new();
    for finding in answer.findings.iter().filter(|finding| !finding.accepted) {
        let hint = escape_line(&finding.hint);
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    text + &style::hint_lines(&hints) + &last_line(answer)
}

fn finding_block(finding: &GateFinding) -> String {
    let name = serialized_name(&finding.name);
    let (style, accepted) = if finding.accepted { (UNSURE, " (accepted)") } else { (BAD, "") };
    let mut text =
        format!("{} {}{accepted}\n", paint(style, format!("{name}[{}]:", finding.code)), escape_line(&finding.message));
    text.extend(finding.paths.iter().take(SHOWN_PATHS).map(|path| format!("    {}\n", escape_line(path))));
    let more = finding.omitted + finding.paths.len().saturating_sub(SHOWN_PATHS) as u64;
    if more > 0 {
        text.push_str(&format!("    and {more} more\n"));
    }
    text
}

fn last_line(answer: &GateAnswer) -> String {
    let profile = escape_line(answer.profile.as_str());
    let run = answer.run.as_ref().map(|run| format!(", {}", run_summary(run))).unwrap_or_default();
    match answer.exit_code {
        0 => format!("{}: profile {profile}{run}\n", paint(GOOD, "verified")),
        EXIT_INCONCLUSIVE => format!("{}: profile {profile}{run}\n", paint(UNSURE, "inconclusive")),
        EXIT_USAGE => format!("{}: profile {profile}\n", paint(BAD, "not verified")),
        _ => {
            let reasons = answer.findings.iter().filter(|finding| !finding.accepted).count();
            let reasons = count(reasons + usize::try_from(answer.omitted).unwrap_or(usize::MAX), "reason");
            format!("{}: profile {profile}, {reasons}{run}\n", paint(BAD, "not verified"))
        }
    }
}

fn run_summary(run: &GateRun) -> String {
    let ago = run.age_ms.map(|age| format!(" {} ago", duration(age))).unwrap_or_default();
    let notes = run.cached_phrase().into_iter().chain(run.cluster_phrase());
    let notes: String = notes.map(|note| format!(", {note}")).collect();
    let oldest = run.oldest_execution_age_ms.map(|age| format!(", oldest execution {} ago", duration(age)));
    let oldest = oldest.unwrap_or_default();
    format!("run {} {}{ago}, tier {}{notes}{oldest}", run.run_id, run.outcome.as_str(), run.tier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::decision::gate::{GateCode, VERSION};
    use proctor_core::decision::verdict::Verdict;
    use proctor_core::model::names::{ProfileName, RunId};
    use proctor_core::model::tier::Tier;
    use proctor_core::record::evidence::ResultOrigin;
    use proctor_core::text::digest::{Sha256Hex, SnapshotId};

    fn finding(code: GateCode, message: &str, paths: usize, accepted: bool) -> GateFinding {
        let paths = (0..paths).map(|number| format!("src/{number}\u{1b}")).collect();
        let (message, hint) = (message.to_owned(), "run `proctor run --profile pr`".to_owned());
        GateFinding { paths, omitted: 3, accepted, ..GateFinding::new(code, message, hint) }
    }

    fn answer(exit_code: u8, findings: Vec<GateFinding>) -> GateAnswer {
        let sha256 = Sha256Hex::digest(b"x");
        GateAnswer {
            version: VERSION,
            pass: exit_code == 0,
            exit_code,
            profile: ProfileName::new("pr").expect("a profile"),
            changeset_id: None,
            snapshot: SnapshotId::from_root(&sha256),
            spec_sha256: sha256.clone(),
            plan_sha256: sha256,
            run: Some(GateRun {
                run_id: RunId::new("r1").expect("an id"),
                outcome: Verdict::Passed,
                tier: Tier::ONE,
                timestamp: "2026-01-02T03:04:05.678Z".into(),
                age_ms: Some(61_000),
                attested: true,
                steps: 4,
                cached_steps: 0,
                oldest_execution: None,
                oldest_execution_age_ms: None,
                origins: Vec::new(),
                clusters: Vec::new(),
            }),
            findings,
            omitted: 0,
        }
    }

    fn render_plain(answer: &GateAnswer) -> String {
        anstream::adapter::strip_str(&render(answer)).to_string()
    }

    #[test]
    fn formatted_age_parses_to_the_same_value() {
        for text in ["unlimited", "24h", "90s", "1500ms", "0s"] {
            let age: MaxAge = text.parse().expect("an age");
            assert_eq!(format_max_age(age).parse(), Ok(age), "{text}");
        }
    }

    #[test]
    fn shows_the_answer_on_the_last_line() {
        assert_eq!(render_plain(&answer(0, vec![])), "verified: profile pr, run r1 passed 1m01s ago, tier 1\n");
        let mut cached = answer(0, vec![]);
        let run = cached.run.as_mut().expect("a run");
        (run.cached_steps, run.oldest_execution_age_ms) = (3, Some(2 * 3_600_000));
        assert_eq!(
            render_plain(&cached),
            "verified: profile pr, run r1 passed 1m01s ago, tier 1, 3 of 4 steps cached, oldest execution 2h00m ago\n"
        );
        let origin = ResultOrigin { key_id: Sha256Hex::digest(b""), host: "builder".to_owned() };
        cached.run.as_mut().expect("a run").origins.push(origin);
        let shown = render_plain(&cached);
        assert!(shown.contains("3 of 4 steps cached (some from `builder` (key e3b0c44298fc1c14)), oldest"), "{shown}");
        let changed = finding(GateCode::TreeChanged, "the tree was changed", 11, false);
        let again = finding(GateCode::OtherSpec, "another\nspec", 0, false);
        insta::assert_snapshot!(render_plain(&answer(1, vec![changed, again])));
        let accepted = finding(GateCode::Unattested, "it is unknown", 0, true);
        assert!(render_plain(&answer(0, vec![accepted])).starts_with("unattested[P0326]: it is unknown (accepted)\n"));
        assert!(render_plain(&answer(5, vec![])).starts_with("inconclusive: profile pr"));
    }
}
