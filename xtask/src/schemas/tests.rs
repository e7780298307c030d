//! Tests which documents the schemas accept and reject, with manually built documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proctor_core::decision::verdict::{InconclusiveReason, Verdict};
use proctor_core::model::cache::{CacheTrust, TransparentCache};
use proctor_core::model::drift::{Change, ChangeKind, Diff, DriftMethod, Entry, EntryKind, StepDrift};
use proctor_core::model::enforcement::{Control, Enforcement, SandboxMode};
use proctor_core::model::leak::{LeakedProcess, LeakedProcesses};
use proctor_core::model::names::{
    ChangesetId, EnvName, ProfileName, RunId, SkillName, StepName, ToolchainName, VarName,
};
use proctor_core::model::outcome::{Outcome, StartFault, Termination};
use proctor_core::model::plan::{
    Argv, Determinism, FileRules, Ignored, Inputs, Leaks, Limit, Limits, Network, PlannedCheck, PlannedSkill,
    PlannedStep, ReadOnly, RelPath, ReportFormat, SkillOrder, VersionDemand,
};
use proctor_core::model::tier::{Tier, TierReason};
use proctor_core::record::evidence::{
    self, AttemptEvidence, CheckEvidence, CheckedFiles, DriftEvidence, FileDependence, InputEnforcement, Measured,
    RemoteExecution, ReportEvidence, ReportFault, ReportState, Resources, ResultOrigin, ReuseSource, StepEvidence,
    StepExecutor, StreamEvidence, Summary, TrackedDrift, WorkerEvidence, WorkerProgram,
};
use proctor_core::text::canonical;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use serde_json::Value;

use super::*;
use status_documents::whole_tree_reuse;

mod status_documents;

/// The schemas, each compiled once.
static VALIDATORS: LazyLock<BTreeMap<&str, jsonschema::Validator>> = LazyLock::new(|| {
    let compiled = |document: &SchemaDocument| {
        let schema = document.value().expect("a valid schema");
        (document.name, jsonschema::draft202012::new(&schema).expect("compiles"))
    };
    DOCUMENTS.iter().map(compiled).collect()
});

/// Checks `instance` against the schema `name`, and returns the violations with their locations.
fn violations(name: &str, instance: &Value) -> Vec<String> {
    VALIDATORS[name].iter_errors(instance).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn assert_valid<T: serde::Serialize>(name: &str, document: &T) -> Value {
    let value: Value = serde_json::from_slice(&canonical::to_vec(document)).expect("JSON");
    assert_eq!(violations(name, &value), Vec::<String>::new(), "{value:#}");
    value
}

/// Sets `pointer` of a valid document to `wrong`; the schema must reject the result.
fn assert_refused(name: &str, valid: &Value, pointer: &str, wrong: &Value) {
    let mut value = valid.clone();
    *value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {valid:#}")) = wrong.clone();
    assert!(!violations(name, &value).is_empty(), "{pointer} = {wrong} is accepted");
}

/// Removes a member of a valid document; the schema must reject the result.
fn assert_required(name: &str, valid: &Value, parent: &str, key: &str) {
    let mut value = valid.clone();
    let members = value.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
    assert!(members.remove(key).is_some(), "{parent}/{key} is not there");
    assert!(!violations(name, &value).is_empty(), "{parent}/{key} may be missing");
}

fn planned() -> PlannedStep {
    PlannedStep {
        name: StepName::new("fmt").expect("name"),
        cmd: Argv::new(vec!["cargo".into(), "fmt".into()]).expect("argv"),
        sql: None,
        workdir: RelPath::new(".").expect("path"),
        timeout_ms: 1_000,
        grace_ms: 500,
        network: Network::Deny,
        read_only: ReadOnly::Tracked,
        env_allowlist: vec![EnvName::new("CI").expect("name")],
        env: BTreeMap::from([(VarName::new("A").expect("name"), "b".to_owned())]),
        limits: Limits {
            pids: Limit::Max(4_096),
            disk: Limit::Max(1 << 30),
            output: Limit::Max(1 << 20),
            open_files: Limit::Max(1_024),
            ..Limits::UNLIMITED
        },
        retries: 1,
        leaks: Leaks::Warn,
        expect_exit: vec![0],
        files: Some(FileRules { include: vec!["src/**".into()], parallel: 1, ..FileRules::default() }),
        fix: None,
        fixes: None,
        inputs: Inputs::Globs(vec!["src/**".into()]),
        reports: Vec::new(),
    }
}

fn drift() -> DriftEvidence {
    let entry =
        |content: &[u8]| Some(Entry { kind: EntryKind::File, executable: false, sha256: Sha256Hex::digest(content) });
    let change = |path: &str, kind, before, after, diff| Change { path: path.into(), kind, before, after, diff };
    let changes = vec![
        change("README.md", ChangeKind::Modified, entry(b"a"), entry(b"b"), Diff::Whole { text: "-a\n+b\n".into() }),
        change("new", ChangeKind::Created, None, entry(b"c"), Diff::Binary),
        change("old", ChangeKind::Deleted, entry(b"d"), None, Diff::Omitted { reason: "the bound".into() }),
    ];
    DriftEvidence {
        method: Some(DriftMethod::Layer),
        found: StepDrift { changes, omitted: 0 },
        applied: vec!["out".into()],
        fixed: StepDrift::default(),
        changed_tree: false,
    }
}

fn found_reports() -> Vec<ReportEvidence> {
    let states = [
        ReportState::Read { sha256: Sha256Hex::digest(b"<testsuite/>"), bytes: 12, redacted: 1 },
        ReportState::Missing,
        ReportState::Refused { reason: ReportFault::TooLarge },
    ];
    let path = RelPath::new("out/junit.xml").expect("path");
    states.map(|state| ReportEvidence { format: ReportFormat::Junit, path: path.clone(), state }).into()
}

fn leaked() -> LeakedProcesses {
    LeakedProcesses::new(1, vec![LeakedProcess::new(7, b"sleep")])
}

fn remote_execution() -> RemoteExecution {
    let sha256 = Some(Sha256Hex::digest(b"a program"));
    RemoteExecution {
        endpoint: "grpcs://cluster:1".into(),
        instance: "main".into(),
        action: "00/1".into(),
        platform: BTreeMap::from([("OSFamily".into(), "linux".into())]),
        trusted: true,
        repo: "/srv/r".into(),
        no_git_objects: Some("they are too large".into()),
        worker: WorkerEvidence {
            architecture: "x86_64".into(),
            kernel: "6.8.0".into(),
            os: "debian 12".into(),
            processors: 4,
            programs: vec![WorkerProgram { name: "tool".into(), path: Some("/usr/bin/tool".into()), sha256 }],
            toolchains: BTreeMap::from([("rust".into(), Some("1.95.0".into())), ("any".into(), None)]),
        },
    }
}

fn step() -> StepEvidence {
    let mut enforcement = Enforcement::default();
    enforcement.record_enforced(Control::Layer, "overlayfs on tmpfs");
    enforcement.record_not_enforced(Control::PidNamespace, "clone: EPERM");
    enforcement.record_not_requested(Control::MemoryLimit, "the plan does not bound it");
    let failed = AttemptEvidence {
        outcome: Outcome::TimedOut,
        termination: Termination::TimedOut { exit_code: 137 },
        duration_ms: 1_500,
        stdout_sha256: Sha256Hex::digest(b""),
        stderr_sha256: Sha256Hex::digest(b""),
        leaked: Some(leaked()),
    };
    StepEvidence {
        planned: planned(),
        outcome: Outcome::Drifted,
        termination: Termination::Exited { code: 0 },
        exit_code: Some(0),
        duration_ms: 12,
        stdout: StreamEvidence { preview: "ok\n".into(), bytes: 3, kept_bytes: 3, ..StreamEvidence::empty() },
        stderr: StreamEvidence::empty(),
        enforcement,
        drift: drift(),
        flaky: true,
        earlier_attempts: vec![failed],
        found_reports: found_reports(),
        input_enforcement: Some(InputEnforcement::enforced(None)),
        checked_files: Some(CheckedFiles {
            count: 1,
            sha256: Sha256Hex::digest(b"src/a\0"),
            batches: 1,
            reused: 1,
            reused_executed_at: Some("2026-01-01T00:00:00Z".into()),
            dependence: Some(FileDependence::new(["src/a".to_owned()].into_iter(), "src/b".to_owned())),
            transparent_caches: vec![transparent_cache()],
            origins: Vec::new(),
            covers_all: true,
        }),
        reused: Some(ReuseSource {
            run_id: "r0".parse().expect("a run id"),
            executed_at: "2026-01-01T00:00:00Z".into(),
            inputs_sha256: Sha256Hex::digest(b"inputs"),
            inputs: 2,
            whole_tree: false,
            transparent_caches: vec![transparent_cache()],
            origin: Some(ResultOrigin { key_id: Sha256Hex::digest(b"key"), host: "ci".into() }),
        }),
        executor: Some(StepExecutor::Remote(Box::new(remote_execution()))),
        env_names: BTreeSet::from(["PATH".to_owned()]),
        resources: Resources { user_ms: 1, system_ms: 2, max_rss_kib: 3, ..Resources::default() },
        leaked: Some(leaked()),
    }
}

fn transparent_cache() -> TransparentCache {
    TransparentCache { path: RelPath::new("target").expect("a path"), trust: CacheTrust::Branch }
}

/// Returns a step that was never reached, in which every optional member is absent.
fn skipped() -> StepEvidence {
    let termination = Termination::NotStarted { reason: "`fmt` failed".into(), fault: StartFault::NotReached };
    StepEvidence {
        outcome: Outcome::Skipped,
        termination,
        exit_code: None,
        enforcement: Enforcement::default(),
        drift: DriftEvidence {
            method: None,
            found: StepDrift::default(),
            applied: Vec::new(),
            fixed: StepDrift::default(),
            changed_tree: false,
        },
        earlier_attempts: Vec::new(),
        found_reports: Vec::new(),
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: None,
        leaked: None,
        ..step()
    }
}

fn summary() -> Summary {
    Summary { outcome: Outcome::Drifted, overall_exit_code: 3, duration_ms: 12 }
}

fn measured() -> Measured {
    let at = "2026-01-02T03:04:05.678Z".to_owned();
    Measured { run_id: RunId::new("r-1").expect("name"), started_at: at.clone(), finished_at: at, caches: vec![] }
}

fn git() -> evidence::GitIdentity {
    let id = "4b825dc642cb6eb9a060e54bf8d69288fbee4904".to_owned();
    evidence::GitIdentity {
        head_commit: Some(id.clone()),
        branch: None,
        tree: Some(id),
        no_tree: None,
        dirty: Some(false),
    }
}

fn tree() -> SnapshotId {
    SnapshotId::from_root(&Sha256Hex::digest(b"tree"))
}

fn skill_evidence() -> SkillEvidence {
    evidence::seal(SkillEvidence {
        version: evidence::VERSION,
        changeset_id: Some(ChangesetId::new("009_x").expect("id")),
        profile: ProfileName::new("pr").expect("name"),
        skill: SkillName::new("verify.format.check").expect("name"),
        determinism: Determinism::D0,
        declared_tier: Tier::ONE,
        tier: Tier::THREE,
        tier_reasons: BTreeSet::from([TierReason::Drift]),
        sandbox: SandboxMode::Strict,
        repo_snapshot_before: tree(),
        repo_snapshot_after: tree(),
        repo_git: git(),
        source: Default::default(),
        tracked_drift: TrackedDrift { mode: ReadOnly::Tracked, changed_files: vec!["README.md".into()] },
        spec_sha256: Sha256Hex::digest(b"spec"),
        spec_dir: RelPath::repository(),
        plan_sha256: Sha256Hex::digest(b"plan"),
        left_out: Vec::new(),
        scope: None,
        flaky: true,
        cached_from: None,
        steps: vec![step(), skipped()],
        summary: summary(),
        measured: measured(),
        sha256: Sha256Hex::digest(b""),
    })
}

fn check_evidence() -> CheckEvidence {
    CheckEvidence {
        toolchain: ToolchainName::new("rust").expect("name"),
        demand: VersionDemand::Range { range: ">=1.80, <2".into() },
        version_read: None,
        satisfied: false,
        hidden_program: None,
        step: step(),
    }
}

#[test]
fn schemas_are_valid_and_have_unique_ids() {
    let mut ids = BTreeSet::new();
    for document in &DOCUMENTS {
        let value = document.value().expect("a valid schema");
        assert_eq!(value["$id"], document.id());
        assert!(ids.insert(document.id()));
        let text = document.text().expect("text");
        assert!(text.starts_with("{\n  \"$") && text.ends_with("}\n"), "{text}");
    }
}

#[test]
fn refuses_invalid_schema() {
    let schema = |rest: Value| {
        let mut all = json!({"$schema": "https://json-schema.org/draft/2020-12/schema"});
        all.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        all
    };
    validate(&schema(json!({"type": "object"}))).expect("a valid one");
    assert!(validate(&json!({"type": "object"})).is_err(), "no draft");
    assert!(validate(&schema(json!({"type": "objekt"}))).is_err(), "no type of JSON");
    assert!(validate(&schema(json!({"$ref": "#/$defs/Gone"}))).is_err(), "points nowhere");
}

#[test]
fn reports_changed_and_unknown_schema_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for place in ["schemas", "docs/man"] {
        std::fs::create_dir_all(directory.path().join(place)).expect("made");
    }
    write(directory.path()).expect("written");
    let ends_well = |code: ExitCode| format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS);
    assert!(ends_well(check(directory.path()).expect("compared")));
    files::write(&directory.path().join("schemas/event.schema.json"), "{}\n").expect("written");
    assert!(!ends_well(check(directory.path()).expect("compared")));
    write(directory.path()).expect("written");
    files::write(&directory.path().join("schemas/stranger.schema.json"), "{}\n").expect("written");
    assert!(!ends_well(check(directory.path()).expect("compared")));
}

#[test]
fn skill_evidence_has_flat_streams_and_bounded_digests() {
    let name = "skill-evidence";
    let value = assert_valid(name, &skill_evidence());
    for stream in ["stdout", "stderr"] {
        for field in ["sha256", "bytes", "kept_bytes", "complete", "redacted", "preview", "tail"] {
            assert_required(name, &value, "/steps/0", &format!("{stream}_{field}"));
        }
        assert_refused(name, &value, &format!("/steps/0/{stream}_sha256"), &json!("E3B0"));
    }
    for digest in ["/sha256", "/spec_sha256", "/plan_sha256", "/repo_snapshot_before", "/repo_snapshot_after"] {
        assert_refused(name, &value, digest, &json!("0".repeat(63)));
    }
    for (pointer, wrong) in [
        ("/version", json!(2)),
        ("/changeset_id", json!("a/b")),
        ("/changeset_id", json!("a..b")),
        ("/determinism", json!("D3")),
        ("/tier", json!(0)),
        ("/tier", json!(4)),
        ("/steps/0/name", json!("a b")),
        ("/steps/0/cmd", json!([])),
        ("/steps/0/timeout_ms", json!(-1)),
        ("/steps/0/exit_code", json!(256)),
        ("/steps/0/exit_code", json!(-2)),
        ("/steps/0/outcome", json!("ok")),
        ("/steps/0/termination/kind", json!("unknown")),
        ("/steps/0/env_allowlist/0", json!("lower")),
        ("/steps/0/enforcement/layer/state", json!("maybe")),
        ("/steps/0/enforcement", json!({"wishes": {"state": "enforced", "mechanism": "x"}})),
        ("/steps/0/drift/changes/0/kind", json!("touched")),
        ("/tracked_drift/mode", json!("readonly")),
    ] {
        assert_refused(name, &value, pointer, &wrong);
    }
}

#[test]
fn evidence_requires_nullable_members() {
    let value = assert_valid("skill-evidence", &skill_evidence());
    for key in value.as_object().expect("an object").keys() {
        assert_required("skill-evidence", &value, "", key);
    }
    for key in value["steps"][1].as_object().expect("an object").keys().filter(|key| *key != "files") {
        assert_required("skill-evidence", &value, "/steps/1", key);
    }
}

#[test]
fn toolchain_evidence_matches_schema() {
    let document = evidence::seal(ToolchainEvidence {
        version: evidence::VERSION,
        changeset_id: None,
        profile: ProfileName::new("pr").expect("name"),
        sandbox: SandboxMode::Strict,
        spec_sha256: Sha256Hex::digest(b"spec"),
        spec_dir: RelPath::repository(),
        plan_sha256: Sha256Hex::digest(b"plan"),
        left_out: Vec::new(),
        scope: None,
        repo_snapshot: tree(),
        repo_git: git(),
        source: Default::default(),
        checks: vec![check_evidence()],
        summary: summary(),
        measured: measured(),
        sha256: Sha256Hex::digest(b""),
    });
    let value = assert_valid("toolchain-evidence", &document);
    // Older documents lack `found_reports`, a step without `files` lacks these, a step that left no process behind lacks
    // `leaked`, and a step that was executed on this machine lacks `reused` and `executor`.
    let optional = ["found_reports", "leaked", "files", "checked_files", "input_enforcement", "reused", "executor"];
    let may_lack = |key: &&String| optional.contains(&key.as_str());
    for key in value["checks"][0].as_object().expect("an object").keys().filter(|key| !may_lack(key)) {
        assert_required("toolchain-evidence", &value, "/checks/0", key);
    }
    assert_refused("toolchain-evidence", &value, "/checks/0/demand/kind", &json!("some"));
}

#[test]
fn plan_matches_schema_and_allows_no_extra_members() {
    let skill = PlannedSkill {
        name: SkillName::new("a").expect("name"),
        description: String::new(),
        determinism: Determinism::D1,
        declared_tier: Tier::TWO,
        needs: vec![SkillName::new("b").expect("name")],
        caches: vec![RelPath::new("target").expect("path")],
        transparent_caches: vec![RelPath::new("target").expect("path")],
        needs_paths: vec![],
        toolchains: Default::default(),
        platform: BTreeMap::from([("os".to_owned(), "linux".to_owned())]),
        container: String::new(),
        steps: vec![planned()],
    };
    let check = PlannedCheck {
        toolchain: ToolchainName::new("rust").expect("name"),
        version: VersionDemand::Any,
        run: planned(),
    };
    let plan = Plan {
        version: 1,
        profile: ProfileName::new("pr").expect("name"),
        spec_sha256: Sha256Hex::digest(b"spec"),
        spec_dir: RelPath::repository(),
        order: SkillOrder::Graph { parallel: 2 },
        ignored: Ignored::Hidden,
        toolchain: vec![check],
        skills: vec![skill],
        left_out: vec![SkillName::new("c").expect("name")],
        scope: None,
    };
    let value = assert_valid("plan", &plan);
    let mut more = value.clone();
    more["extra"] = json!(1);
    assert!(!violations("plan", &more).is_empty());
    assert_required("plan", &value, "", "order");
}

#[test]
fn events_match_schema() {
    let skill = || SkillName::new("a").expect("name");
    let events = [
        RunEvent::CheckFinished { check: check_evidence() },
        RunEvent::StepFinished { skill: skill(), step: skipped() },
        RunEvent::Doubted { doubt: InconclusiveReason::TreeChanged, message: "edited".into() },
        RunEvent::SkillFinished { skill: skill(), outcome: Outcome::Passed, tier: Tier::ONE, reason: String::new() },
        RunEvent::RunFinished {
            verdict: Verdict::Inconclusive,
            tier: Tier::ONE,
            exit_code: 5,
            duration_ms: 1,
            evidence_dir: Some("/state/runs/r1".into()),
            reuse: Some(whole_tree_reuse()),
        },
    ];
    for event in &events {
        let value = assert_valid("event", event);
        assert_refused("event", &value, "/event", &json!("something_else"));
    }
}

#[test]
fn shipped_specs_are_valid_without_warnings() {
    for path in ["spec/verification.yaml", "fixtures/demo/spec/verification.yaml"] {
        let bytes = files::read(&crate::root().join(path)).expect("there");
        let value: Value = serde_yaml::from_slice(&bytes).expect("YAML");
        assert_eq!(violations("spec", &value), Vec::<String>::new(), "{path}");
        let reading = proctor_core::spec::parse(&bytes).expect(path);
        assert_eq!(reading.warnings, Vec::new(), "{path}");
    }
}

#[test]
fn first_readme_spec_is_valid() {
    let readme = String::from_utf8(files::read(&crate::root().join("README.md")).expect("there")).expect("UTF-8");
    let block = readme.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let reading = proctor_core::spec::parse(block.as_bytes()).expect("a spec");
    assert_eq!(reading.warnings, Vec::new());
}

/// Returns the bodies of `curl … -d '…'` in the manual, each with its request path.
fn request_examples(page: &str) -> Vec<(String, String)> {
    // Joins continued lines to one command, and replaces a shell variable by a path.
    let joined = page.replace("\\\n", " ").replace("'\"$PWD\"'", "/home/a/project");
    let command = |line: &str| {
        let path = line.split_whitespace().find_map(|word| {
            let rest = word.trim_matches(['\'', '"']).strip_prefix("http://")?;
            Some(rest[rest.find('/')?..].to_owned())
        })?;
        let body = ["-d '", "--json '", "--data '"].iter().find_map(|option| line.split_once(option))?.1;
        let body = body.split('\'').next()?;
        Some((path, body.to_owned()))
    };
    joined.lines().filter(|line| line.contains("curl ")).filter_map(command).collect()
}

#[test]
fn request_examples_in_manual_match_schemas() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let api = openapi::document();
    let mut seen = 0;
    let pages =
        files::list_files(&root.join("docs")).expect("the manual").into_iter().map(|page| root.join("docs").join(page));
    for page in pages.chain([root.join("README.md")]).filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&page).expect("a page");
        for (path, body) in request_examples(&text) {
            let path_of = path.replace('/', "~1");
            let pointer = format!("/paths/{path_of}/post/requestBody/content/application~1json/schema");
            // The MCP endpoint for agents has its own protocol.
            let Some(schema) = api.pointer(&pointer) else { continue };
            let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
            let mut schema = schema.clone();
            schema["components"] = api["components"].clone();
            let validator = jsonschema::draft202012::new(&schema).expect("compiles");
            let wrong: Vec<String> = validator.iter_errors(&body).map(|error| error.to_string()).collect();
            assert_eq!(wrong, Vec::<String>::new(), "{}: {path} {body}", page.display());
            if path == "/v1/sql/verify" {
                assert_eq!(violations("sql-request", &body), Vec::<String>::new(), "{body}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "docs/sql.md shows a request");
}

#[test]
fn sql_request_requires_only_text_and_dialect() {
    let least = json!({ "sql": "SELECT 1", "dialect": "sqlite" });
    assert_eq!(violations("sql-request", &least), Vec::<String>::new());
    for (key, value) in [
        ("schema", json!("CREATE TABLE t (a)")),
        ("schema", json!(["CREATE TABLE t (a)"])),
        ("limits", json!({ "time_ms": 100 })),
        ("allow", json!({ "tables": ["t"] })),
        ("reject_at", json!(80)),
    ] {
        let mut with = least.clone();
        with[key] = value;
        assert_eq!(violations("sql-request", &with), Vec::<String>::new(), "{with}");
    }
    assert_required("sql-request", &least, "", "sql");
    let mut wrong = least.clone();
    wrong["reject_at"] = json!(0);
    assert!(!violations("sql-request", &wrong).is_empty());
}
