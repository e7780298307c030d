//! Checks `docs/spec.md`: its examples parse, and it lists all keys and codes. The keys of the operator's config are in
//! `docs/operator-config.md`, those of `[daemon]` in `docs/daemon.md`, those of SQL
//! steps in `docs/sql.md`, and those of `[ask]` and `[sql]` in `docs/sql-ask.md` and `docs/sql-verifiers.md`.

use std::path::Path;

use proctor_core::model::plan::{Limit, Limits, RelPath};
use proctor_core::spec::{self, ByteSize, Code, DaemonSettings, OperatorConfig, TreeSettings, built_in};

fn spec_manual() -> String {
    read_doc("spec.md")
}

fn operator_manual() -> String {
    read_doc("operator-config.md")
}

fn read_doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(path).expect("the manual")
}

/// Returns the table row of `key`.
fn table_row(manual: &str, key: &str) -> String {
    let start = format!("| `{key}` |");
    let alone = |line: &&str| line.starts_with(&start) || line.starts_with(&format!("| {start}"));
    manual.lines().find(alone).unwrap_or_else(|| panic!("no row of {key}")).to_owned()
}

fn code_blocks(manual: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    manual.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn manual_examples_parse() {
    let manual = spec_manual();
    let specs = code_blocks(&manual, "yaml");
    assert_eq!(specs.len(), 6);
    for text in specs {
        let reading = spec::parse(text.as_bytes()).unwrap_or_else(|found| panic!("{text}\n{found:#?}"));
        assert!(reading.warnings.is_empty(), "{:?}", reading.warnings);
    }
    let configs = code_blocks(&operator_manual(), "toml");
    assert_eq!(configs.len(), 1);
    let operator = OperatorConfig::parse(&configs[0]).expect("the example");
    assert_eq!(operator.ceiling.memory, Limit::Max(16 << 30));
}

/// Specs and configs on other pages that users are expected to copy.
#[test]
fn examples_of_other_pages_parse() {
    let [recipes, sql_steps, files] =
        ["recipes.md", "sql.md", "files.md"].map(|page| code_blocks(&read_doc(page), "yaml"));
    assert_eq!((recipes.len(), sql_steps.len(), files.len()), (7, 1, 2));
    for text in recipes.into_iter().chain(sql_steps).chain(files) {
        let reading = spec::parse(text.as_bytes()).unwrap_or_else(|found| panic!("{text}\n{found:#?}"));
        assert!(reading.warnings.is_empty(), "{:?}", reading.warnings);
    }
    let configs = code_blocks(&read_doc("operating.md"), "toml");
    assert_eq!(configs.len(), 2);
    for text in configs {
        OperatorConfig::parse(&text).unwrap_or_else(|found| panic!("{text}\n{found:#?}"));
    }
}

#[test]
fn manual_lists_every_code() {
    let manual = spec_manual();
    for code in Code::ALL {
        assert!(manual.contains(&format!("`{code}`")), "{code}");
    }
}

#[test]
fn manual_names_every_key() {
    let manual = spec_manual()
        + &operator_manual()
        + &read_doc("files.md")
        + &read_doc("sql.md")
        + &read_doc("sql-ask.md")
        + &read_doc("sql-verifiers.md")
        + &read_doc("prepared-paths.md")
        + &read_doc("remote-cache.md")
        + &read_doc("remote-executor.md");
    let daemon_docs = read_doc("daemon.md") + &read_doc("telemetry.md");
    for schema in [spec::schema(), spec::operator_schema()] {
        let definitions = schema["$defs"].as_object().expect("definitions").values();
        for definition in definitions.chain([&schema]) {
            for key in definition["properties"].as_object().into_iter().flat_map(|properties| properties.keys()) {
                let named = [format!("`{key}`"), format!("\n{key} = "), format!("\n[{key}]"), format!(".{key}]")];
                let of_a_table = [format!("`{key}`"), format!("| `{key}."), format!(".{key}` |")];
                let is_there = named.iter().any(|form| manual.contains(form));
                assert!(is_there || of_a_table.iter().any(|form| daemon_docs.contains(form)), "{key}");
            }
        }
    }
}

#[test]
fn manual_states_actual_defaults() {
    let manual = spec_manual();
    let ends = |key: &str, value: String| {
        assert!(table_row(&manual, key).ends_with(&format!("| `{value}` |")), "{key}: {value}");
    };
    ends("timeout_ms", built_in::TIMEOUT_MS.to_string());
    ends("workdir", RelPath::repository().to_string());
    ends("network", built_in::NETWORK.as_str().to_owned());
    ends("read_only", built_in::READ_ONLY.as_str().to_owned());
    ends("ignored", built_in::IGNORED.as_str().to_owned());
    ends("leaks", built_in::LEAKS.as_str().to_owned());
    ends("grace_ms", built_in::GRACE_MS.to_string());
    ends("retries", built_in::RETRIES.to_string());
    ends("tier", built_in::TIER.to_string());
    ends("determinism", format!("{:?}", built_in::DETERMINISM));
    ends("pids", Limits::BUILT_IN.pids.get_or_max().to_string());
    ends("disk", ByteSize(Limits::BUILT_IN.disk.get_or_max()).to_string());
    ends("output", ByteSize(Limits::BUILT_IN.output.get_or_max()).to_string());
    ends("open_files", Limits::BUILT_IN.open_files.get_or_max().to_string());
}

#[test]
fn manual_states_actual_tree_defaults() {
    let manual = operator_manual();
    let line = |key: &str| {
        let of_key = |line: &&str| line.starts_with(&format!("{key} = "));
        manual.lines().find(of_key).unwrap_or_else(|| panic!("no line of {key}")).to_owned()
    };
    let tree = TreeSettings::default();
    assert!(line("mode").ends_with(&format!("; default {}", tree.mode.as_str())), "{}", line("mode"));
    assert!(line("max_entries").starts_with(&format!("max_entries = {} ", tree.max_entries.get_or_max())));
    assert!(line("max_bytes").starts_with(&format!("max_bytes = \"{}\" ", ByteSize(tree.max_bytes.get_or_max()))));
    let schema = spec::operator_schema();
    let described = schema["$defs"]["TreeFile"]["properties"]["mode"]["description"].as_str().expect("a description");
    assert!(described.ends_with(&format!("Default: `{}`.", tree.mode.as_str())), "{described}");
}

#[test]
fn manual_states_actual_daemon_defaults() {
    let manual = read_doc("daemon.md");
    let settings = DaemonSettings::default();
    let ends = |key: &str, value: String| {
        assert!(table_row(&manual, key).ends_with(&format!("| {value} |")), "{key}: {value}");
    };
    ends("max_connections", settings.max_connections.to_string());
    ends("request_timeout_ms", settings.request_timeout.as_millis().to_string());
    ends("drain_ms", settings.drain.as_millis().to_string());
    ends("approve_tier2", settings.approve_tier2.to_string());
    ends("log.level", format!("`{}`", settings.log.level));
    ends("retention.max_runs", settings.retention.max_runs.to_string());
    ends("retention.max_output_bytes", settings.retention.max_output_bytes.to_string());
    ends("retention.max_copy_bytes", settings.retention.max_copy_bytes.to_string());
    ends("retention.max_result_bytes", settings.retention.max_result_bytes.to_string());
    assert!(
        table_row(&manual, "max_queued`, `max_queued_per_caller")
            .ends_with(&format!("| {}; {} |", settings.max_queued, settings.max_queued_per_caller))
    );
    assert_eq!((settings.max_runs, settings.idle_exit, settings.retention.max_age), (None, None, None));
}
