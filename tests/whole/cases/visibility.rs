//! Tests what a step sees of the machine, and its user.

use super::missing_controls::wrapper_without;
use crate::environment::{CHANGESET, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, NEEDS_PYTHON, Needs, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("visibility::homes_state_and_sibling_directories_are_hidden", homes_state_and_siblings_are_hidden),
    case("visibility::toolchains_are_visible_without_credentials", toolchains_are_visible_without_credentials),
    case("", package_stores_discard_writes).unprivileged("visibility::package_stores_take_writes_and_discard_them"),
    case("visibility::package_stores_are_read_only_without_overlays", package_stores_without_overlays)
        .needs(NEEDS_PYTHON)
        .unprivileged("visibility::package_stores_are_read_only_without_overlays"),
    case("visibility::hidden_program_is_named_with_its_directory", hidden_program_is_named),
    case("visibility::home_is_empty_and_writable", home_is_empty_and_writable),
    case("visibility::nothing_outside_the_tree_is_writable", nothing_outside_tree_is_writable),
    case("visibility::tmp_is_private", tmp_is_private),
    case("visibility::step_sees_only_its_own_processes", step_sees_only_its_processes),
    case("visibility::step_has_no_capabilities_and_no_new_privileges", step_has_no_privileges),
    case("visibility::step_inherits_no_open_files", step_inherits_no_open_files),
    case("visibility::a_step_of_root_is_never_host_root", step_is_never_host_root)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("visibility::root_verifies_a_repository_of_another_user", repository_of_another_user)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("visibility::path_with_spaces_and_non_ascii_letters", path_with_special_characters).needs(NEEDS_GIT),
    case("visibility::linked_worktree_is_verified", linked_worktree).needs(NEEDS_GIT),
    case("visibility::a_subdirectory_finds_its_repository", subdirectory_finds_its_repository),
    case("visibility::step_runs_in_its_workdir", step_runs_in_workdir),
    case("visibility::links_at_mount_points_are_not_followed", links_at_mount_points_are_not_followed),
];

fn homes_state_and_siblings_are_hidden(env: &TestEnvironment) {
    machine::write(&env.state_dir().join("secret.txt"), "a secret in the state directory\n");
    if env.actor() == crate::needs::Actor::Unprivileged && machine::is_root() {
        machine::change_owner(&env.state_dir(), machine::UNPRIVILEGED_ID);
    }
    let root = env.root().display();
    let script = format!(
        "bad=0; for f in {root}/home/secret.txt {root}/sibling/secret.txt {root}/state/secret.txt; do \
         if [ -e \"$f\" ] || cat \"$f\" 2>/dev/null; then echo \"seen: $f\"; bad=1; fi; done; \
         for d in /root /home /run/user /var/tmp; do case {root}/ in $d/*) continue;; esac; \
         n=$(ls -A \"$d\" 2>/dev/null | wc -l); [ \"$n\" = 0 ] || {{ echo \"seen in $d:\"; ls -A $d; bad=1; }}; done; exit $bad"
    );
    let repo = env.repo(&TestSpec::from_script(&script));
    repo.run().exits(0);
}

fn toolchains_are_visible_without_credentials(env: &TestEnvironment) {
    const CREDENTIAL: &str = "the-credential-of-the-caller";
    let secrets = [
        ".cargo/credentials.toml",
        ".cargo/credentials",
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".npmrc",
        ".git-credentials",
        ".config/gh/hosts.yml",
        ".docker/config.json",
        ".bash_history",
        ".local/share/keyrings/x",
    ];
    for path in secrets {
        machine::write(&env.home_dir().join(path), CREDENTIAL);
    }
    machine::write(&env.home_dir().join(".cargo/config.toml"), format!("[registries.x]\ntoken = \"{CREDENTIAL}\"\n"));
    machine::write(&env.home_dir().join(".cargo/registry/index"), "the registry\n");
    machine::write(&env.home_dir().join(".cargo/bin/a-tool"), "#!/bin/sh\necho a tool ran\n");
    machine::make_dir_public(&env.home_dir().join(".cargo/bin/a-tool"));
    let script = format!(
        "a-tool; cat ~/.cargo/registry/index; (: > ~/.cargo/bin/a-tool) 2>/dev/null && echo written; \
         grep -rl {CREDENTIAL} ~ /root /home /run /etc 2>/dev/null; true"
    );
    let repo = env.repo(&TestSpec::from_script(&script));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "a tool ran\nthe registry\n");
}

/// Writes to a package store, and fails if an earlier step has left something there.
const USE_STORE: &str = "cd ~/.npm/_cacache && cat index && test ! -e new && echo x > new && echo y >> index && mkdir deep && \
    echo z > deep/file && rm old && test ! -s credentials";

fn create_store(env: &TestEnvironment) {
    let store = env.home_dir().join(".npm/_cacache");
    for (name, text) in [("index", "the index\n"), ("old", "old\n"), ("credentials", "a secret\n")] {
        machine::write(&store.join(name), text);
    }
    env.give_to_actor(&env.home_dir().join(".npm"));
}

fn package_stores_discard_writes(env: &TestEnvironment) {
    create_store(env);
    // The steps have the same frame, so that they would share a sandbox if the first one left nothing behind.
    let steps = ["one", "two", "it"].map(|name| TestStep::sh(name, USE_STORE));
    let repo = env.repo(&TestSpec::from_steps(steps));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "the index\n");
    let store = env.home_dir().join(".npm/_cacache");
    let listed = std::fs::read_dir(&store).expect("lists").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = listed.collect();
    names.sort();
    assert_eq!(names, ["credentials", "index", "old"]);
    assert_eq!(std::fs::read_to_string(store.join("index")).expect("reads"), "the index\n");
}

fn package_stores_without_overlays(env: &TestEnvironment) {
    create_store(env);
    let repo = env.repo(&TestSpec::from_script("cd ~/.npm/_cacache && cat index && ! touch new"));
    let words = ["run", "--profile", "pr", "--changeset", CHANGESET, "--sandbox=best-effort"];
    let wrapper = wrapper_without(&["fsconfig:1@0=EINVAL"]);
    env.finish(env.start_through(repo.path(), &wrapper, &words)).exits(0);
    let recorded = repo.step("it")["enforcement"]["hidden_paths"].to_string();
    assert!(recorded.contains("package stores are read-only"), "{recorded}");
}

fn hidden_program_is_named(env: &TestEnvironment) {
    let bin = env.home_dir().join(".local/share/manager/installs/foo/1.0/bin");
    machine::write(&bin.join("foo"), "#!/bin/sh\necho foo ran\n");
    machine::make_dir_public(&bin.join("foo"));
    env.give_to_actor(&env.home_dir().join(".local"));
    env.set_caller_var("PATH", &format!("{}:{}", bin.display(), machine::PATH));
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["foo"])]));
    let run = repo.run().exits(5);
    let named = "`foo` not found. It is at `~/.local/share/manager/installs/foo/1.0/bin`, which steps do not see; add \
                 `tool_mounts = [\"~/.local/share/manager\"]` to `~/.config/proctor/proctord.toml`";
    assert_eq!(repo.step("it")["termination"]["reason"], named, "{run}");
    let check = "toolchains: { foo: { required: [{ cmd: [foo, --version] }] } }";
    let checked = env.repo_at("checked", &TestSpec::from_script("true").with_top_level(check));
    let hint =
        "hint: it is at `~/.local/share/manager/installs/foo/1.0/bin`, which steps do not see; add `tool_mounts = ";
    checked.run().exits(5).prints(&["missing tool: foo\n", hint]);
    // Steps run another program of this name.
    machine::write(&bin.join("true"), "#!/bin/sh\n");
    machine::make_dir_public(&bin.join("true"));
    env.give_to_actor(&env.home_dir().join(".local"));
    let check = "toolchains: { other: { required: [{ cmd: [\"true\"] }] } }";
    let other = env.repo_at("other", &TestSpec::from_script("true").with_top_level(check));
    let warning = "warning: steps run another `true` than your shell, which finds it in \
                   `~/.local/share/manager/installs/foo/1.0/bin`\nhint: to run that one, add `tool_mounts = ";
    let run = other.run().exits(0);
    assert!(run.all_output().contains(warning), "{run}");
    // The tools of known version managers are visible.
    let known = env.home_dir().join(".local/share/mise/installs/foo/1.0/bin");
    std::fs::create_dir_all(known.parent().expect("a parent")).expect("makes");
    std::fs::rename(&bin, &known).expect("renames");
    env.give_to_actor(&env.home_dir().join(".local"));
    env.set_caller_var("PATH", &format!("{}:{}", known.display(), machine::PATH));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "foo ran\n");
}

fn home_is_empty_and_writable(env: &TestEnvironment) {
    // Proctor may have written a `.gitconfig` there, because git must trust a repository of another user.
    let script =
        "cd \"$HOME\" && [ -z \"$(ls -A | grep -v '^.gitconfig$')\" ] && echo x > .cache-file && cat .cache-file";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(0);
    assert!(!env.home_dir().join(".cache-file").exists());
}

fn nothing_outside_tree_is_writable(env: &TestEnvironment) {
    let script = "for d in / /etc /usr/bin /var /opt /srv /dev /proc/sys/kernel /sys; do \
                  if (: > $d/proctor-test-write) 2>/dev/null; then echo \"wrote $d\"; exit 1; fi; done; \
                  for f in /etc/passwd /etc/hosts /bin/sh; do if (: >> $f) 2>/dev/null; then echo \"opened $f\"; exit 1; fi; done; \
                  (: > ../proctor-test-write) 2>/dev/null; exit 0";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(0);
    assert!(!env.root().join("proctor-test-write").exists());
}

fn tmp_is_private(env: &TestEnvironment) {
    let name = env.marker().to_owned();
    let script = format!("for d in /tmp /var/tmp /dev/shm \"$TMPDIR\"; do echo x > $d/{name} || exit 1; done");
    let repo = env.repo(&TestSpec::from_script(&script));
    repo.run().exits(0);
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!std::path::Path::new(dir).join(&name).exists(), "{dir}");
    }
}

fn step_sees_only_its_processes(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("ls -d /proc/[0-9]* | wc -l; kill -0 -1 2>/dev/null; true"));
    repo.run().exits(0);
    let step = repo.step("it");
    let count: u32 = step["stdout_preview"].as_str().and_then(|text| text.trim().parse().ok()).expect("a number");
    assert!(count <= 6, "{count} processes are seen");
}

fn step_has_no_privileges(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs):' /proc/self/status"));
    repo.run().exits(0);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(text.contains(&format!("{name}:\t0000000000000000")), "{text}");
    }
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
}

fn step_inherits_no_open_files(env: &TestEnvironment) {
    // The fourth descriptor belongs to `ls` itself.
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["ls", "/proc/self/fd"])]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "0\n1\n2\n3\n");
}

fn step_is_never_host_root(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    assert_ne!(machine::host_uid(step.main_pid), 0);
    release_step(&step);
    env.finish(running).exits(0);
}

fn repository_of_another_user(env: &TestEnvironment) {
    let script = "echo $(id -u) $(stat -c %u README.md); [ -O README.md ] && echo x > target-file.log";
    let repo = env.repo(&TestSpec::from_script(script));
    machine::change_owner(repo.path(), 4242);
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "4242 4242\n");
    let owner =
        std::os::unix::fs::MetadataExt::uid(&repo.changeset().join("05-status.json").metadata().expect("written"));
    assert!(owner == 4242 || owner == 0, "{owner}");
}

fn path_with_special_characters(env: &TestEnvironment) {
    let script = "git status --porcelain && cat src/lib.rs && pwd && echo x >> README.md";
    let repo = env.repo_at("a dir/ünïcode: \"quoted\", 100%/repo,lowerdir=x", &TestSpec::from_script(script));
    repo.run().exits(3);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(text.trim_end().ends_with(repo.path().to_str().expect("UTF-8")), "{text}");
    assert_eq!(repo.evidence("verify.it")["tracked_drift"]["changed_files"], serde_json::json!(["README.md"]));
}

fn linked_worktree(env: &TestEnvironment) {
    let main = env.repo(&TestSpec::from_script(
        "git rev-parse --abbrev-ref HEAD && git log --oneline && git status --porcelain && echo x >> README.md",
    ));
    let path = env.root().join("linked");
    main.git(&["worktree", "add", "--quiet", "-b", "side", path.to_str().expect("UTF-8")]);
    let linked = crate::environment::Repo::at(env, path);
    linked.run().exits(3);
    let text = linked.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(text.starts_with("side\n"), "{text}");
    assert_eq!(linked.changes_seen_by_git(), [""; 0]);
    assert!(main.has_no_documents());
}

fn subdirectory_finds_its_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat README.md"));
    let inside = crate::environment::Repo::at(env, repo.file("src"));
    inside.run().exits(0);
    assert_eq!(repo.last_run()["outcome"], "passed");
    assert!(!repo.file("src/changes").exists());
}

fn step_runs_in_workdir(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["pwd"]).with_field("workdir: ./src/")]));
    repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_preview"], format!("{}\n", repo.file("src").display()));
    assert_eq!(step["workdir"], "src");
}

/// Directories of the repository are links to outside directories. Nothing may be mounted through them, and nothing
/// outside may be read or written.
fn links_at_mount_points_are_not_followed(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let script =
        "cat link/secret.txt && exit 1; echo x > link/written && exit 2; mkdir -p target; echo y > target/z; exit 0";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.link("link", &outside);
    repo.run().exits(0);
    assert!(!outside.join("written").exists());
}
