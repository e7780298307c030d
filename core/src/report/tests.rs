//! Tests properties of every format, and takes snapshots of each.

use proptest::prelude::*;
use quick_junit::Report;
use serde_json::{Value, json};

use super::RunReportFormat;
use super::fixture::{
    HOSTILE_OUTPUT, cached_step, drifted_step, failed_step, partly_checked_step, passed_run, passed_step, report_input,
    reported_run, ruff_sarif, run_of_steps, run_with_each_outcome, run_with_tool_reports, stream_evidence, tool_report,
    with_inconclusive_reason,
};
use crate::decision::verdict::{InconclusiveReason, Verdict};
use crate::model::names::SkillName;
use crate::model::outcome::{Outcome, Termination};
use crate::model::plan::ReportFormat;
use crate::model::run_scope::RunScope;
use crate::report::report_input::{
    ReportInput, ReportedCommit, ReportedRefusal, ReportedRun, RunResult, ToolReport, ToolReportContent,
};

fn render_one(run: ReportedRun, format: RunReportFormat) -> String {
    let runs = [run];
    let input = report_input(&runs);
    format.render(&input)
}

fn sarif_document(run: ReportedRun) -> Value {
    let text = render_one(run, RunReportFormat::Sarif);
    let document = serde_json::from_str(&text).expect("JSON");
    super::tool::sarif_reader::assert_valid(&document);
    document
}

fn junit_report(run: ReportedRun) -> Report {
    let text = render_one(run, RunReportFormat::Junit);
    Report::deserialize_from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The formats whose output is tested here; the page has its own tests.
fn text_formats() -> impl Iterator<Item = RunReportFormat> {
    RunReportFormat::ALL.into_iter().filter(|format| *format != RunReportFormat::Html)
}

#[test]
fn each_format_renders_every_outcome() {
    for format in text_formats() {
        insta::assert_snapshot!(
            format!("one_of_each_{}", format.as_str()),
            render_one(reported_run(run_with_each_outcome(), Vec::new()), format)
        );
    }
}

#[test]
fn each_format_renders_a_pass() {
    for format in text_formats() {
        insta::assert_snapshot!(
            format!("pass_{}", format.as_str()),
            render_one(reported_run(run_of_steps(vec![passed_step("a")]), Vec::new()), format)
        );
    }
}

#[test]
fn each_format_shows_cached_steps_as_passed() {
    for format in text_formats() {
        let record = run_of_steps(vec![passed_step("executed"), cached_step("reused"), partly_checked_step("files")]);
        let text = render_one(reported_run(record, Vec::new()), format);
        insta::assert_snapshot!(format!("cached_{}", format.as_str()), text);
    }
}

/// The schema of Jenkins' xUnit plugin permits properties of suites only.
#[test]
fn junit_cases_have_no_properties() {
    let record = run_of_steps(vec![cached_step("reused"), partly_checked_step("files")]);
    let text = render_one(reported_run(record, Vec::new()), RunReportFormat::Junit);
    let (_, cases) = text.split_once("<testcase").expect("a case");
    assert!(!cases.contains("<propert"), "{text}");
}

/// GitHub requires these texts of each rule.
#[test]
fn sarif_rules_have_descriptions_and_help() {
    let document = sarif_document(reported_run(passed_run(), Vec::new()));
    for rule in document["runs"][0]["tool"]["driver"]["rules"].as_array().expect("rules") {
        for key in ["shortDescription", "fullDescription", "help"] {
            assert!(rule[key]["text"].is_string(), "{key} of {rule}");
        }
    }
}

/// A name that a spec may contain and that reverses text on a screen.
const TEXT_WITH_BIDI_CONTROLS: &str = "a\u{202e}b\u{2066}c\u{61c}";

#[test]
fn formats_remove_colours_and_bidirectional_controls() {
    let coloured =
        "\x1b[1m\x1b[91merror[E0308]\x1b[0m: mismatched types\n\x1b]8;;https://x.org\x1b\\link\x1b]8;;\x1b\\\n";
    let mut record = run_of_steps(vec![failed_step("a", coloured), drifted_step("d", &[TEXT_WITH_BIDI_CONTROLS])]);
    record.skills[0].skill = SkillName::new(TEXT_WITH_BIDI_CONTROLS).expect("a skill name");
    record.add_inconclusive_reasons(&[InconclusiveReason::Toolchain.with_message(TEXT_WITH_BIDI_CONTROLS)]);
    let suites = format!(
        "<testsuite name='{TEXT_WITH_BIDI_CONTROLS}'><testcase name='{TEXT_WITH_BIDI_CONTROLS}'><system-out>&#27;[1mx</system-out></testcase></testsuite>"
    );
    let files = vec![ToolReport {
        skill: record.skills[0].skill.clone(),
        step: record.skills[0].steps[0].planned.name.clone(),
        format: ReportFormat::Junit,
        path: TEXT_WITH_BIDI_CONTROLS.into(),
        content: ToolReportContent::Read(suites.into_bytes()),
    }];
    let commit = ReportedCommit { id: "a".repeat(40), subject: TEXT_WITH_BIDI_CONTROLS.into() };
    let runs = [ReportedRun { commit: Some(commit), ..reported_run(record, files) }, refused_run()];
    let input = report_input(&runs);
    let annotations = super::select_annotations(&input).commands.join("\n");
    let texts = RunReportFormat::ALL
        .map(|format| format.render(&input))
        .into_iter()
        .chain([annotations, super::render_summary(&input, 0)]);
    for text in texts {
        assert!(!text.contains(|c: char| c != '\n' && crate::text::safe_text::affects_display(c)), "{text:?}");
        assert!(!text.contains("x1b["), "{text}");
        assert!(!text.contains("E0308") || text.contains("error[E0308]: mismatched types"), "{text}");
    }
}

fn refused_run() -> ReportedRun {
    let refusal = ReportedRefusal { message: "no `spec`".into(), hints: vec!["make one".into()], exit_code: 2 };
    ReportedRun::new(None, RunResult::Refused(refusal))
}

#[test]
fn refused_run_is_not_a_pass_in_any_format() {
    for format in text_formats() {
        insta::assert_snapshot!(format!("no_run_{}", format.as_str()), render_one(refused_run(), format));
    }
    assert_eq!(junit_report(refused_run()).errors, 1);
    assert_eq!(sarif_document(refused_run())["runs"][0]["invocations"][0]["executionSuccessful"], false);
}

#[test]
fn each_format_renders_a_range_as_one_document() {
    let commit = |id: &str| Some(ReportedCommit { id: id.repeat(40), subject: "say <b>@octocat</b>".into() });
    let runs = [
        ReportedRun { commit: commit("a"), ..reported_run(run_of_steps(vec![passed_step("a")]), Vec::new()) },
        ReportedRun { commit: commit("b"), ..reported_run(run_of_steps(vec![failed_step("a", "no\n")]), Vec::new()) },
        ReportedRun { commit: commit("c"), ..refused_run() },
    ];
    let range = ReportInput { left_out: 2, exit_code: 1, ..report_input(&runs) };
    for format in text_formats() {
        insta::assert_snapshot!(format!("range_{}", format.as_str()), format.render(&range));
    }
    assert_eq!(range.verdict(), Verdict::Failed);
}

#[test]
fn merges_tool_reports_and_reports_unusable_ones() {
    for format in text_formats() {
        insta::assert_snapshot!(format!("tools_{}", format.as_str()), render_one(run_with_tool_reports(), format));
    }
    assert_eq!(find_injected_command(&render_one(run_with_tool_reports(), RunReportFormat::Github)), None);
    let junit = junit_report(run_with_tool_reports());
    let names: Vec<&str> = junit.test_suites.iter().map(|suite| suite.name.as_str()).collect();
    assert_eq!(names, ["verify.it", "verify.it/tests: pytest"]);
    assert_eq!((junit.failures, junit.errors), (2, 2), "of the step and of its case; of two unusable files");
    let sarif = sarif_document(run_with_tool_reports());
    let tools: Vec<&Value> =
        sarif["runs"].as_array().expect("runs").iter().map(|run| &run["tool"]["driver"]["name"]).collect();
    assert_eq!(tools, ["Proctor", "ruff", "ruff"]);
    assert_ne!(sarif["runs"][1]["automationDetails"]["id"], sarif["runs"][2]["automationDetails"]["id"]);
}

#[test]
fn sarif_document_respects_server_limits() {
    let many = |count: usize| {
        reported_run(
            run_of_steps(vec![passed_step("lints")]),
            vec![tool_report("lints", ReportFormat::Sarif, ruff_sarif(count))],
        )
    };
    let document = sarif_document(many(3_000));
    let kept = |index: usize| document["runs"][index]["results"].as_array().expect("results").len();
    assert_eq!(kept(0) + kept(1) + kept(2), super::sarif::MAX_RESULTS);
    let notices = document["runs"][0]["invocations"][0]["toolExecutionNotifications"].to_string();
    assert!(notices.contains("1000 of 3000 results of ruff of verify.it/lints were left out"), "{notices}");
    let long = json!({ "message": { "text": "x".repeat(super::sarif::MAX_DOCUMENT_BYTES / 3) } });
    let log = json!({ "version": "2.1.0", "runs": [{ "tool": { "driver": { "name": "long" } }, "results": [long, long, long, long] }] });
    let content = ToolReportContent::Read(log.to_string().into_bytes());
    let text = render_one(
        reported_run(
            run_of_steps(vec![passed_step("lints")]),
            vec![tool_report("lints", ReportFormat::Sarif, content)],
        ),
        RunReportFormat::Sarif,
    );
    assert!(text.len() < super::sarif::MAX_DOCUMENT_BYTES && text.contains("2 of 4 results of long"), "{}", text.len());
}

#[test]
fn limits_annotations_per_level() {
    let paths: Vec<String> = (0..30).map(|n| format!("src/{n}.rs")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let runs =
        [reported_run(run_of_steps(vec![drifted_step("drifts", &paths), failed_step("fails", "no\n")]), Vec::new())];
    let annotations = super::select_annotations(&report_input(&runs));
    assert_eq!((annotations.commands.len(), annotations.left_out.len()), (10, 22));
    assert!(
        annotations.commands[0].starts_with("::error file=src/0.rs,line=2,title=drift by"),
        "{:?}",
        annotations.commands
    );
    assert!(annotations.commands[9].contains("lists the other 22"), "{:?}", annotations.commands);
}

#[test]
fn summary_lists_left_out_annotations() {
    let findings = |count| vec![tool_report("lints", ReportFormat::Sarif, ruff_sarif(count))];
    let runs = [reported_run(run_of_steps(vec![failed_step("lints", "no\n")]), findings(60))];
    let left_out = super::select_annotations(&report_input(&runs)).left_out;
    assert!(!left_out.is_empty());
    let summary = super::render_summary(&report_input(&runs), 0);
    let heading = format!("<summary>{} more annotations are not shown in the code</summary>", left_out.len());
    assert!(summary.contains(&heading), "{summary}");
    for annotation in &left_out {
        assert!(summary.contains(&super::markdown::inline_code(annotation)), "{annotation}: {summary}");
    }
    let few = [reported_run(run_of_steps(vec![failed_step("lints", "no\n")]), findings(3))];
    assert!(!super::render_summary(&report_input(&few), 0).contains("not shown in the code"));
    // If there are too many annotations for the summary, it reports their number.
    let many = [reported_run(run_of_steps(vec![failed_step("lints", "no\n")]), findings(30_000))];
    let summary = super::render_summary(&report_input(&many), 0);
    assert!(summary.contains(" more, which do not fit here either\n") && summary.len() < 1 << 20);
    assert!(
        !RunReportFormat::Markdown.render(&report_input(&many)).contains("not shown in the code"),
        "a comment has no annotations"
    );
}

#[test]
fn comment_and_summary_are_bounded() {
    let steps: Vec<_> = (0..400).map(|n| failed_step(&format!("s{n}"), &"long ".repeat(800))).collect();
    let runs = [reported_run(run_of_steps(steps), Vec::new())];
    let comment = RunReportFormat::Markdown.render(&report_input(&runs));
    assert!(comment.chars().count() < 65_536 && comment.contains("did not fit; `proctor report`"), "{}", comment.len());
    let summary = super::render_summary(&report_input(&runs), 0);
    assert!(summary.len() > comment.len() && summary.len() < 1 << 20);
    for taken in [1 << 20, (1 << 20) - 10, (1 << 20) - 511, (1 << 20) - 512, (1 << 20) - 5_000, 1 << 21] {
        let summary = super::render_summary(&report_input(&runs), taken);
        let room = (1_usize << 20).saturating_sub(usize::try_from(taken).expect("a size"));
        assert!(summary.len() <= room, "{taken}: {}", summary.len());
        assert_eq!(summary.is_empty(), room < 512, "{taken}");
    }
}

/// A program that looks for the pass of a complete run, by a word or a field, finds none.
#[test]
fn each_format_marks_a_restricted_run() {
    let mut record = run_of_steps(vec![passed_step("a")]);
    let scope = RunScope { selected: vec!["verify.lint/a".to_owned()], ..RunScope::default() };
    record.started.as_mut().expect("a start").scope = Some(scope);
    for format in RunReportFormat::ALL {
        let text = render_one(reported_run(record.clone(), Vec::new()), format).replace("&#46;", ".");
        assert!(text.contains("only verify.lint/a"), "{}: {text}", format.as_str());
        let is_marked = text.to_lowercase().contains("partial") || format == RunReportFormat::Junit;
        assert!(is_marked, "{}: {text}", format.as_str());
    }
}

#[test]
fn each_format_marks_a_partial_run() {
    let mut record = run_of_steps(vec![passed_step("passes")]);
    let whole = [reported_run(record.clone(), Vec::new())];
    let after = crate::model::names::RunId::new("r1").expect("an id");
    let left_out = vec![crate::model::names::SkillName::new("left").expect("a name")];
    let rerun = crate::decision::rerun::Rerun {
        after,
        not_passed: vec![super::fixture::skill_name()],
        left_out,
        gone: Vec::new(),
    };
    record.started.as_mut().expect("it began").rerun = Some(rerun);
    let runs = [reported_run(record, Vec::new())];
    for format in RunReportFormat::ALL {
        let words = match format {
            RunReportFormat::Junit => &["name=\"left_out\" value=\"left\"", "<testcase name=\"left\"", "<skipped"][..],
            RunReportFormat::Sarif => &["\"leftOut\":[\"left\"]", "\"id\":\"partial-run\""],
            RunReportFormat::Github => {
                &["proctor: partial run passed", "::warning title=partial run::only 1 of 2 skills ran"]
            }
            RunReportFormat::Markdown => {
                &["Proctor: partial run passed", "**Partial run**: <code>only 1 of 2 skills ran"]
            }
            RunReportFormat::Html => &["<title>partial run passed", "in a partial run", "only 1 of 2 skills ran"],
        };
        let (text, of_whole) = (format.render(&report_input(&runs)), format.render(&report_input(&whole)));
        for word in words {
            assert!(text.contains(word) && !of_whole.contains(word), "{format:?} {word}\n{text}");
        }
    }
    let partial = |runs| super::workflow_outputs(&report_input(runs)).pop().map(|output| output.to_line("t"));
    assert_eq!(
        [partial(&runs), partial(&whole)],
        ["partial=true\n", "partial=false\n"].map(|line| Some(line.to_owned()))
    );
}

#[test]
fn formats_workflow_outputs() {
    let runs = [reported_run(passed_run(), Vec::new())];
    let outputs = super::workflow_outputs(&report_input(&runs));
    let text: String = outputs.iter().map(|output| output.to_line("t")).collect();
    assert!(text.starts_with("verdict=passed\nexit_code=0\nrun_id="), "{text}");
    let several = super::WorkflowOutput { name: "x", value: "a\nb".into() };
    assert_eq!(several.to_line("END"), "x<<END\na\nb\nEND\n");
}

fn any_step() -> impl Strategy<Value = (Outcome, String)> {
    use Outcome::{Cancelled, Drifted, Failed, Inconclusive, Passed, Skipped, TimedOut};
    (prop::sample::select(vec![Passed, Failed, TimedOut, Drifted, Skipped, Cancelled, Inconclusive]), any::<String>())
}

fn run_with(steps: Vec<(Outcome, String)>, doubt: Option<String>) -> ReportedRun {
    let of = |(index, (outcome, text)): (usize, (Outcome, String))| {
        let mut step = match outcome {
            Outcome::Drifted => drifted_step("x", &[crate::model::drift::display_path(text.as_bytes()).as_str()]),
            Outcome::Passed => passed_step("x"),
            Outcome::Cancelled => super::fixture::step_with_end("x", outcome, Termination::Cancelled),
            other => super::fixture::step_with_end("x", other, Termination::Exited { code: 1 }),
        };
        step.planned.name = crate::model::names::StepName::new(format!("s{index}")).expect("a name");
        (step.stdout, step.stderr) = (stream_evidence(&text), stream_evidence(&format!("{HOSTILE_OUTPUT}{text}")));
        step
    };
    let record = run_of_steps(steps.into_iter().enumerate().map(of).collect());
    reported_run(
        match doubt {
            Some(message) => with_inconclusive_reason(record, InconclusiveReason::Internal, &message),
            None => record,
        },
        Vec::new(),
    )
}

/// Returns a line of a log that a runner would interpret as a command, outside the sections with commands disabled.
fn find_injected_command(log: &str) -> Option<&str> {
    let mut stopped = false;
    log.lines().find(|line| {
        let command = line.trim_start();
        if command == "::t0ken::" {
            stopped = false;
        }
        let was_stopped = stopped;
        stopped |= command == "::stop-commands::t0ken";
        let ours =
            ["::error ", "::warning ", "::notice ", "::group::", "::endgroup::", "::stop-commands::t0ken", "::t0ken::"];
        // The name of a command does not begin with a colon, so `:::` is not a command.
        let may_be_command = command.starts_with("::") && !command.starts_with(":::");
        let is_command = may_be_command && !ours.iter().any(|word| command.starts_with(word));
        !was_stopped && is_command || line.contains("##[") || line.contains("##vso[")
    })
}

/// Returns the part of a comment that is interpreted as Markdown: neither code nor preformatted text.
fn interpreted_markdown(comment: &str) -> String {
    let rest = remove_enclosed(&remove_enclosed(comment, "<pre>", "</pre>"), "<code>", "</code>");
    let mut fence: Option<&str> = None;
    let mut interpreted = String::new();
    for line in rest.lines() {
        match fence {
            Some(mark) if line == mark => fence = None,
            Some(_) => {}
            None if line.starts_with("```") => fence = line.strip_suffix("diff"),
            None => interpreted.push_str(&format!("{line}\n")),
        }
    }
    assert_eq!(fence, None, "a fence is left open");
    interpreted
}

fn remove_enclosed(text: &str, open: &str, close: &str) -> String {
    let parts = text.split(open).enumerate();
    let outside = |(index, part): (usize, &str)| match index {
        0 => part.to_owned(),
        _ => part.split_once(close).expect("it is closed").1.to_owned(),
    };
    parts.map(outside).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn document_has_failure_unless_run_passed(steps in prop::collection::vec(any_step(), 0..5), doubt in prop::option::of(any::<String>())) {
        let run = run_with(steps, doubt);
        let is_passed = run.verdict() == Verdict::Passed;
        let report = junit_report(run.clone());
        prop_assert_eq!(report.failures + report.errors == 0, is_passed);
        let document = sarif_document(run);
        let own = &document["runs"][0];
        let speaks = own["results"].as_array().is_some_and(|results| !results.is_empty()) || own["invocations"][0]["executionSuccessful"] == false;
        prop_assert_eq!(!speaks, is_passed);
    }

    #[test]
    fn step_text_never_becomes_command_or_markup(steps in prop::collection::vec(any_step(), 1..4), doubt in prop::option::of(any::<String>())) {
        let run = run_with(steps, doubt);
        for format in text_formats() {
            let text = render_one(run.clone(), format);
            let bad = |c: char| c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c);
            prop_assert!(!text.contains(bad), "{format:?}: {text}");
            prop_assert_eq!(find_injected_command(&text), None, "{:?}: {}", format, text);
        }
        let comment = interpreted_markdown(&render_one(run, RunReportFormat::Markdown));
        prop_assert!(!comment.contains("octocat") && !comment.contains("evil.example"), "{comment}");
        prop_assert!(!comment.contains("<script") && !comment.contains('['), "{comment}");
    }
}

/// Returns a run whose failed step names files of the repository in its output.
fn run_with_output_findings() -> ReportedRun {
    let output = "\x1b[1m\x1b[91merror[E0308]\x1b[0m\x1b[1m: mismatched types\x1b[0m\n  \x1b[94m--> \x1b[0msrc/main.rs:4:20\n\
                  a,b%0A.py:3: error: ::warning::no\nsrc/gone.py:1:1: F401 gone\n::error file=x::y\n";
    let mut run = reported_run(run_of_steps(vec![failed_step("a", output)]), Vec::new());
    run.repository.existing = ["src/main.rs", "a,b%0A.py"].map(str::to_owned).into();
    run
}

#[test]
fn errors_in_outputs_become_annotations() {
    let text = render_one(run_with_output_findings(), RunReportFormat::Github);
    assert_eq!(find_injected_command(&text), None);
    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("::error")).collect();
    assert_eq!(
        commands,
        [
            "::error file=src/main.rs,line=4,col=20,title=verify.it/a::error[E0308]: mismatched types",
            "::error file=a%2Cb%250A.py,line=3,title=verify.it/a::error: ::warning::no",
        ]
    );
}

#[test]
fn errors_in_outputs_become_sarif_results() {
    let document = sarif_document(run_with_output_findings());
    let results = document["runs"][0]["results"].as_array().expect("results");
    let places: Vec<&Value> = results
        .iter()
        .filter(|result| result["ruleId"] == "proctor/output")
        .map(|result| &result["locations"][0]["physicalLocation"])
        .collect();
    assert_eq!(places.len(), 2);
    assert_eq!(places[0]["artifactLocation"]["uri"], "src/main.rs");
    assert_eq!((&places[0]["region"]["startLine"], &places[0]["region"]["startColumn"]), (&4.into(), &20.into()));
    assert_eq!(places[1]["artifactLocation"]["uri"], "a%2Cb%250A.py");
}
