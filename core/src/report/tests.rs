//! Tests properties of every format, and takes snapshots of each.

use proptest::prelude::*;
use quick_junit::Report;
use serde_json::{Value, json};

use super::fixture::{
    HOSTILE, doubted, drifted, failed, file, input, one_of_each, passed, reported, run, step, stream, tools_sarif,
    with_tools,
};
use super::{CameTo, Content, Format, Refusal, ReportInput, ReportedCommit, ReportedRun, ToolFile};
use crate::names::SkillName;
use crate::outcome::{Outcome, Termination};
use crate::plan::ReportFormat;
use crate::verdict::{Doubt, Verdict};

fn one(run: ReportedRun, format: Format) -> String {
    let runs = [run];
    let input = input(&runs);
    format.write(&input)
}

fn sarif(run: ReportedRun) -> Value {
    let text = one(run, Format::Sarif);
    let document = serde_json::from_str(&text).expect("JSON");
    super::tool::sarif::demand(&document);
    document
}

fn junit(run: ReportedRun) -> Report {
    let text = one(run, Format::Junit);
    Report::deserialize_from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The formats whose output is tested here; the page has its own tests.
const TEXTS: [Format; 4] = [Format::Junit, Format::Sarif, Format::Github, Format::Markdown];

#[test]
fn each_format_of_a_run_with_one_of_each() {
    for format in TEXTS {
        insta::assert_snapshot!(
            format!("one_of_each_{}", format.as_str()),
            one(reported(one_of_each(), Vec::new()), format)
        );
    }
}

#[test]
fn each_format_of_a_pass() {
    for format in TEXTS {
        insta::assert_snapshot!(
            format!("pass_{}", format.as_str()),
            one(reported(run(vec![step("a")]), Vec::new()), format)
        );
    }
}

/// A name that a spec may contain and that reverses text on a screen.
const REVERSED: &str = "a\u{202e}b\u{2066}c\u{61c}";

#[test]
fn no_format_passes_on_colours_or_bidirectional_controls() {
    let coloured =
        "\x1b[1m\x1b[91merror[E0308]\x1b[0m: mismatched types\n\x1b]8;;https://x.org\x1b\\link\x1b]8;;\x1b\\\n";
    let mut record = run(vec![failed("a", coloured), drifted("d", &[REVERSED])]);
    record.skills[0].skill = SkillName::new(REVERSED).expect("a skill name");
    record.add_doubts(&[(Doubt::Toolchain, REVERSED.to_owned())]);
    let suites = format!(
        "<testsuite name='{REVERSED}'><testcase name='{REVERSED}'><system-out>&#27;[1mx</system-out></testcase></testsuite>"
    );
    let files = vec![ToolFile {
        skill: record.skills[0].skill.clone(),
        step: record.skills[0].steps[0].planned.name.clone(),
        format: ReportFormat::Junit,
        path: REVERSED.into(),
        content: Content::Read(suites.into_bytes()),
    }];
    let commit = ReportedCommit { id: "a".repeat(40), subject: REVERSED.into() };
    let runs = [ReportedRun { commit: Some(commit), ..reported(record, files) }, refused()];
    let input = input(&runs);
    let annotations = super::annotations(&input).commands.join("\n");
    let texts =
        Format::ALL.map(|format| format.write(&input)).into_iter().chain([annotations, super::summary(&input, 0)]);
    for text in texts {
        assert!(!text.contains(|c: char| c != '\n' && crate::safe_text::affects_display(c)), "{text:?}");
        assert!(!text.contains("x1b["), "{text}");
        assert!(!text.contains("E0308") || text.contains("error[E0308]: mismatched types"), "{text}");
    }
}

fn refused() -> ReportedRun {
    let refusal = Refusal { message: "no `spec`".into(), hints: vec!["make one".into()], exit_code: 2 };
    ReportedRun { commit: None, came_to: CameTo::Nothing(refusal), files: Vec::new() }
}

#[test]
fn what_could_not_be_had_is_no_pass_in_any_format() {
    for format in TEXTS {
        insta::assert_snapshot!(format!("no_run_{}", format.as_str()), one(refused(), format));
    }
    assert_eq!(junit(refused()).errors, 1);
    assert_eq!(sarif(refused())["runs"][0]["invocations"][0]["executionSuccessful"], false);
}

#[test]
fn a_range_is_one_document() {
    let commit = |id: &str| Some(ReportedCommit { id: id.repeat(40), subject: "say <b>@octocat</b>".into() });
    let runs = [
        ReportedRun { commit: commit("a"), ..reported(run(vec![step("a")]), Vec::new()) },
        ReportedRun { commit: commit("b"), ..reported(run(vec![failed("a", "no\n")]), Vec::new()) },
        ReportedRun { commit: commit("c"), ..refused() },
    ];
    let range = ReportInput { left_out: 2, exit_code: 1, ..input(&runs) };
    for format in TEXTS {
        insta::assert_snapshot!(format!("range_{}", format.as_str()), format.write(&range));
    }
    assert_eq!(range.verdict(), Verdict::Failed);
}

#[test]
fn reports_of_tools_are_merged_and_what_is_none_is_told() {
    for format in TEXTS {
        insta::assert_snapshot!(format!("tools_{}", format.as_str()), one(with_tools(), format));
    }
    assert_eq!(forged(&one(with_tools(), Format::Github)), None);
    let junit = junit(with_tools());
    let names: Vec<&str> = junit.test_suites.iter().map(|suite| suite.name.as_str()).collect();
    assert_eq!(names, ["verify.it", "verify.it/tests: pytest"]);
    assert_eq!((junit.failures, junit.errors), (2, 2), "of the step and of its case; of two unusable files");
    let sarif = sarif(with_tools());
    let tools: Vec<&Value> =
        sarif["runs"].as_array().expect("runs").iter().map(|run| &run["tool"]["driver"]["name"]).collect();
    assert_eq!(tools, ["Proctor", "ruff", "ruff"]);
    assert_ne!(sarif["runs"][1]["automationDetails"]["id"], sarif["runs"][2]["automationDetails"]["id"]);
}

#[test]
fn a_document_is_as_large_as_servers_take() {
    let many =
        |count: usize| reported(run(vec![step("lints")]), vec![file("lints", ReportFormat::Sarif, tools_sarif(count))]);
    let document = sarif(many(3_000));
    let kept = |index: usize| document["runs"][index]["results"].as_array().expect("results").len();
    assert_eq!(kept(0) + kept(1) + kept(2), super::sarif::MAX_RESULTS);
    let notices = document["runs"][0]["invocations"][0]["toolExecutionNotifications"].to_string();
    assert!(notices.contains("1000 of 3000 results of ruff of verify.it/lints were left out"), "{notices}");
    let long = json!({ "message": { "text": "x".repeat(super::sarif::MAX_BYTES / 3) } });
    let log = json!({ "version": "2.1.0", "runs": [{ "tool": { "driver": { "name": "long" } }, "results": [long, long, long, long] }] });
    let content = Content::Read(log.to_string().into_bytes());
    let text =
        one(reported(run(vec![step("lints")]), vec![file("lints", ReportFormat::Sarif, content)]), Format::Sarif);
    assert!(text.len() < super::sarif::MAX_BYTES && text.contains("2 of 4 results of long"), "{}", text.len());
}

#[test]
fn github_is_told_ten_of_a_kind_and_how_many_more() {
    let paths: Vec<String> = (0..30).map(|n| format!("src/{n}.rs")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let runs = [reported(run(vec![drifted("drifts", &paths), failed("fails", "no\n")]), Vec::new())];
    let told = super::annotations(&input(&runs));
    assert_eq!((told.commands.len(), told.left_out.len()), (10, 22));
    assert!(told.commands[0].starts_with("::error file=src/0.rs,line=2,title=drift by"), "{:?}", told.commands);
    assert!(told.commands[9].contains("names the other 22"), "{:?}", told.commands);
}

#[test]
fn the_summary_names_what_is_not_annotated() {
    let findings = |count| vec![file("lints", ReportFormat::Sarif, tools_sarif(count))];
    let runs = [reported(run(vec![failed("lints", "no\n")]), findings(60))];
    let left_out = super::annotations(&input(&runs)).left_out;
    assert!(!left_out.is_empty());
    let summary = super::summary(&input(&runs), 0);
    let heading = format!("<summary>{} more annotations are not shown in the code</summary>", left_out.len());
    assert!(summary.contains(&heading), "{summary}");
    for annotation in &left_out {
        assert!(summary.contains(&super::markdown::code(annotation)), "{annotation}: {summary}");
    }
    let few = [reported(run(vec![failed("lints", "no\n")]), findings(3))];
    assert!(!super::summary(&input(&few), 0).contains("not shown in the code"));
    // If there are too many annotations for the summary, it reports their number.
    let many = [reported(run(vec![failed("lints", "no\n")]), findings(30_000))];
    let summary = super::summary(&input(&many), 0);
    assert!(summary.contains(" more, for which there is no room here either\n") && summary.len() < 1 << 20);
    assert!(!Format::Markdown.write(&input(&many)).contains("not shown in the code"), "a comment has no annotations");
}

#[test]
fn a_comment_and_a_summary_have_their_bounds() {
    let steps: Vec<_> = (0..400).map(|n| failed(&format!("s{n}"), &"long ".repeat(800))).collect();
    let runs = [reported(run(steps), Vec::new())];
    let comment = Format::Markdown.write(&input(&runs));
    assert!(comment.chars().count() < 65_536 && comment.contains("There was no room for"), "{}", comment.len());
    let summary = super::summary(&input(&runs), 0);
    assert!(summary.len() > comment.len() && summary.len() < 1 << 20);
    for taken in [1 << 20, (1 << 20) - 10, (1 << 20) - 511, (1 << 20) - 512, (1 << 20) - 5_000, 1 << 21] {
        let summary = super::summary(&input(&runs), taken);
        let room = (1_usize << 20).saturating_sub(usize::try_from(taken).expect("a size"));
        assert!(summary.len() <= room, "{taken}: {}", summary.len());
        assert_eq!(summary.is_empty(), room < 512, "{taken}");
    }
}

/// A program that looks for the pass of a complete run, by a word or a field, finds none.
#[test]
fn a_partial_run_is_called_so_in_every_format() {
    let mut record = run(vec![step("passes")]);
    let whole = [reported(record.clone(), Vec::new())];
    let after = crate::names::RunId::new("r1").expect("an id");
    let left_out = vec![crate::names::SkillName::new("left").expect("a name")];
    let rerun = crate::rerun::Rerun { after, not_passed: vec![super::fixture::skill()], left_out, gone: Vec::new() };
    record.started.as_mut().expect("it began").rerun = Some(rerun);
    let runs = [reported(record, Vec::new())];
    for (format, words) in [
        (Format::Junit, &["name=\"left_out\" value=\"left\"", "<testcase name=\"left\"", "<skipped"][..]),
        (Format::Sarif, &["\"leftOut\":[\"left\"]", "\"id\":\"partial-run\""]),
        (Format::Github, &["proctor: partial run passed", "::warning title=partial run::only 1 of 2 skills ran"]),
        (Format::Markdown, &["Proctor: partial run passed", "**Partial run**: <code>only 1 of 2 skills ran"]),
        (Format::Html, &["<title>partial run passed", "in a partial run", "only 1 of 2 skills ran"]),
    ] {
        let (text, of_whole) = (format.write(&input(&runs)), format.write(&input(&whole)));
        for word in words {
            assert!(text.contains(word) && !of_whole.contains(word), "{format:?} {word}\n{text}");
        }
    }
    let partial = |runs| super::outputs(&input(runs)).pop().map(|output| output.line("t"));
    assert_eq!(
        [partial(&runs), partial(&whole)],
        ["partial=true\n", "partial=false\n"].map(|line| Some(line.to_owned()))
    );
}

#[test]
fn outputs_are_lines() {
    let runs = [reported(passed(), Vec::new())];
    let outputs = super::outputs(&input(&runs));
    let text: String = outputs.iter().map(|output| output.line("t")).collect();
    assert!(text.starts_with("verdict=passed\nexit_code=0\nrun_id="), "{text}");
    let several = super::Output { name: "x", value: "a\nb".into() };
    assert_eq!(several.line("END"), "x<<END\na\nb\nEND\n");
}

fn any_step() -> impl Strategy<Value = (Outcome, String)> {
    use Outcome::{Cancelled, Drifted, Failed, Inconclusive, Passed, Skipped, TimedOut};
    (prop::sample::select(vec![Passed, Failed, TimedOut, Drifted, Skipped, Cancelled, Inconclusive]), any::<String>())
}

fn run_of(steps: Vec<(Outcome, String)>, doubt: Option<String>) -> ReportedRun {
    let of = |(index, (outcome, text)): (usize, (Outcome, String))| {
        let mut step = match outcome {
            Outcome::Drifted => drifted("x", &[crate::drift::display_path(text.as_bytes()).as_str()]),
            Outcome::Passed => step("x"),
            Outcome::Cancelled => super::fixture::ended("x", outcome, Termination::Cancelled),
            other => super::fixture::ended("x", other, Termination::Exited { code: 1 }),
        };
        step.planned.name = crate::names::StepName::new(format!("s{index}")).expect("a name");
        (step.stdout, step.stderr) = (stream(&text), stream(&format!("{HOSTILE}{text}")));
        step
    };
    let record = run(steps.into_iter().enumerate().map(of).collect());
    reported(
        match doubt {
            Some(message) => doubted(record, Doubt::Internal, &message),
            None => record,
        },
        Vec::new(),
    )
}

/// Returns a line of a log that a runner would interpret as a command, outside the sections with commands disabled.
fn forged(log: &str) -> Option<&str> {
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
        let is_command = command.starts_with("::") && !ours.iter().any(|word| command.starts_with(word));
        !was_stopped && is_command || line.contains("##[") || line.contains("##vso[")
    })
}

/// Returns the part of a comment that is interpreted as Markdown: neither code nor preformatted text.
fn rest_of_markdown(comment: &str) -> String {
    let rest = without(&without(comment, "<pre>", "</pre>"), "<code>", "</code>");
    let mut fence: Option<&str> = None;
    let mut told = String::new();
    for line in rest.lines() {
        match fence {
            Some(mark) if line == mark => fence = None,
            Some(_) => {}
            None if line.starts_with("```") => fence = line.strip_suffix("diff"),
            None => told.push_str(&format!("{line}\n")),
        }
    }
    assert_eq!(fence, None, "a fence is left open");
    told
}

fn without(text: &str, open: &str, close: &str) -> String {
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
    fn a_document_without_a_failure_is_a_pass(steps in prop::collection::vec(any_step(), 0..5), doubt in prop::option::of(any::<String>())) {
        let run = run_of(steps, doubt);
        let is_passed = run.verdict() == Verdict::Passed;
        let report = junit(run.clone());
        prop_assert_eq!(report.failures + report.errors == 0, is_passed);
        let document = sarif(run);
        let own = &document["runs"][0];
        let speaks = own["results"].as_array().is_some_and(|results| !results.is_empty()) || own["invocations"][0]["executionSuccessful"] == false;
        prop_assert_eq!(!speaks, is_passed);
    }

    #[test]
    fn nothing_of_a_step_is_a_command_or_markup(steps in prop::collection::vec(any_step(), 1..4), doubt in prop::option::of(any::<String>())) {
        let run = run_of(steps, doubt);
        for format in TEXTS {
            let text = one(run.clone(), format);
            let bad = |c: char| c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c);
            prop_assert!(!text.contains(bad), "{format:?}: {text}");
            prop_assert_eq!(forged(&text), None, "{:?}: {}", format, text);
        }
        let comment = rest_of_markdown(&one(run, Format::Markdown));
        prop_assert!(!comment.contains("octocat") && !comment.contains("evil.example"), "{comment}");
        prop_assert!(!comment.contains("<script") && !comment.contains('['), "{comment}");
    }
}
