//! Tests what a step sees of the machine, and its user.

use crate::environment::{TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_GIT, Needs, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("visibility::homes_state_and_neighbours_are_hidden", hidden),
    case("visibility::toolchains_are_seen_and_credentials_are_not", toolchains_without_credentials),
    case("visibility::the_home_inside_is_empty_and_writable", empty_home),
    case("visibility::nothing_outside_the_tree_can_be_written", read_only_root),
    case("visibility::tmp_is_private", private_tmp),
    case("visibility::only_its_own_processes_are_seen", own_processes),
    case("visibility::no_capabilities_and_no_new_privileges", no_privileges),
    case("visibility::no_file_of_ours_is_open", no_open_files),
    case("visibility::a_step_of_root_is_never_host_root", not_host_root).needs(&[Needs::Sandbox, Needs::Root]),
    case("visibility::root_verifies_a_repository_of_another_user", repository_of_another)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("visibility::a_path_with_spaces_and_letters_beyond_ascii", odd_path).needs(NEEDS_GIT),
    case("visibility::a_linked_worktree", linked_worktree).needs(NEEDS_GIT),
    case("visibility::a_subdirectory_finds_its_repository", from_subdirectory),
    case("visibility::workdir_is_where_a_step_runs", workdir),
    case("visibility::a_link_planted_at_a_mount_point_leads_nowhere", planted_links),
];

fn hidden(env: &TestEnvironment) {
    machine::write(&env.state().join("secret.txt"), "a secret in the state directory\n");
    if env.actor() == crate::needs::Actor::Unprivileged && machine::is_root() {
        machine::give_to(&env.state(), machine::UNPRIVILEGED_ID);
    }
    let root = env.root().display();
    let script = format!(
        "bad=0; for f in {root}/home/secret.txt {root}/sibling/secret.txt {root}/state/secret.txt; do \
         if [ -e \"$f\" ] || cat \"$f\" 2>/dev/null; then echo \"seen: $f\"; bad=1; fi; done; \
         for d in /root /home /run/user /var/tmp; do case {root}/ in $d/*) continue;; esac; \
         n=$(ls -A \"$d\" 2>/dev/null | wc -l); [ \"$n\" = 0 ] || {{ echo \"seen in $d:\"; ls -A $d; bad=1; }}; done; exit $bad"
    );
    let repo = env.repo(&Spec::of_script(&script));
    repo.run().exits(0);
}

fn toolchains_without_credentials(env: &TestEnvironment) {
    const SECRET: &str = "the-credential-of-the-caller";
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
        machine::write(&env.home().join(path), SECRET);
    }
    machine::write(&env.home().join(".cargo/config.toml"), format!("[registries.x]\ntoken = \"{SECRET}\"\n"));
    machine::write(&env.home().join(".cargo/registry/index"), "the registry\n");
    machine::write(&env.home().join(".cargo/bin/a-tool"), "#!/bin/sh\necho a tool ran\n");
    machine::open_to_all(&env.home().join(".cargo/bin/a-tool"));
    let script = format!(
        "a-tool; cat ~/.cargo/registry/index; (: > ~/.cargo/registry/index) 2>/dev/null && echo written; \
         grep -rl {SECRET} ~ /root /home /run /etc 2>/dev/null; true"
    );
    let repo = env.repo(&Spec::of_script(&script));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "a tool ran\nthe registry\n");
}

fn empty_home(env: &TestEnvironment) {
    // Proctor may have written a `.gitconfig` there, because git must trust a repository of another user.
    let script =
        "cd \"$HOME\" && [ -z \"$(ls -A | grep -v '^.gitconfig$')\" ] && echo x > .cache-file && cat .cache-file";
    let repo = env.repo(&Spec::of_script(script));
    repo.run().exits(0);
    assert!(!env.home().join(".cache-file").exists());
}

fn read_only_root(env: &TestEnvironment) {
    let script = "for d in / /etc /usr/bin /var /opt /srv /dev /proc/sys/kernel /sys; do \
                  if (: > $d/proctor-test-write) 2>/dev/null; then echo \"wrote $d\"; exit 1; fi; done; \
                  for f in /etc/passwd /etc/hosts /bin/sh; do if (: >> $f) 2>/dev/null; then echo \"opened $f\"; exit 1; fi; done; \
                  (: > ../proctor-test-write) 2>/dev/null; exit 0";
    let repo = env.repo(&Spec::of_script(script));
    repo.run().exits(0);
    assert!(!env.root().join("proctor-test-write").exists());
}

fn private_tmp(env: &TestEnvironment) {
    let name = env.marker().to_owned();
    let script = format!("for d in /tmp /var/tmp /dev/shm \"$TMPDIR\"; do echo x > $d/{name} || exit 1; done");
    let repo = env.repo(&Spec::of_script(&script));
    repo.run().exits(0);
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!std::path::Path::new(dir).join(&name).exists(), "{dir}");
    }
}

fn own_processes(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("ls -d /proc/[0-9]* | wc -l; kill -0 -1 2>/dev/null; true"));
    repo.run().exits(0);
    let step = repo.step("it");
    let count: u32 = step["stdout_preview"].as_str().and_then(|text| text.trim().parse().ok()).expect("a number");
    assert!(count <= 6, "{count} processes are seen");
}

fn no_privileges(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs):' /proc/self/status"));
    repo.run().exits(0);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(text.contains(&format!("{name}:\t0000000000000000")), "{text}");
    }
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
}

fn no_open_files(env: &TestEnvironment) {
    // The fourth descriptor belongs to `ls` itself.
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["ls", "/proc/self/fd"])]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "0\n1\n2\n3\n");
}

fn not_host_root(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    assert_ne!(machine::host_uid_of(step.process), 0);
    release(&step);
    env.finish(running).exits(0);
}

fn repository_of_another(env: &TestEnvironment) {
    let script = "echo $(id -u) $(stat -c %u README.md); [ -O README.md ] && echo x > target-file.log";
    let repo = env.repo(&Spec::of_script(script));
    machine::give_to(repo.path(), 4242);
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "4242 4242\n");
    let owner =
        std::os::unix::fs::MetadataExt::uid(&repo.changeset().join("05-status.json").metadata().expect("written"));
    assert!(owner == 4242 || owner == 0, "{owner}");
}

fn odd_path(env: &TestEnvironment) {
    let script = "git status --porcelain && cat src/lib.rs && pwd && echo x >> README.md";
    let repo = env.repo_at("a dir/ünïcode: \"quoted\", 100%/repo,lowerdir=x", &Spec::of_script(script));
    repo.run().exits(3);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(text.trim_end().ends_with(repo.path().to_str().expect("UTF-8")), "{text}");
    assert_eq!(repo.evidence("verify.it")["tracked_drift"]["changed_files"], serde_json::json!(["README.md"]));
}

fn linked_worktree(env: &TestEnvironment) {
    let main = env.repo(&Spec::of_script(
        "git rev-parse --abbrev-ref HEAD && git log --oneline && git status --porcelain && echo x >> README.md",
    ));
    let path = env.root().join("linked");
    main.git(&["worktree", "add", "--quiet", "-b", "side", path.to_str().expect("UTF-8")]);
    let linked = crate::environment::Repo::at(env, path);
    linked.run().exits(3);
    let text = linked.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(text.starts_with("side\n"), "{text}");
    assert_eq!(linked.changes_seen_by_git(), [""; 0]);
    assert!(main.is_untouched());
}

fn from_subdirectory(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("cat README.md"));
    let inside = crate::environment::Repo::at(env, repo.file("src"));
    inside.run().exits(0);
    assert_eq!(repo.last_run()["outcome"], "passed");
    assert!(!repo.file("src/changes").exists());
}

fn workdir(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["pwd"]).with("workdir: ./src/")]));
    repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_preview"], format!("{}\n", repo.file("src").display()));
    assert_eq!(step["workdir"], "src");
}

/// Directories of the repository are links to outside directories. Nothing may be mounted through them, and nothing
/// outside may be read or written.
fn planted_links(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let script =
        "cat link/secret.txt && exit 1; echo x > link/written && exit 2; mkdir -p target; echo y > target/z; exit 0";
    let repo = env.repo(&Spec::of_script(script));
    repo.link("link", &outside);
    repo.run().exits(0);
    assert!(!outside.join("written").exists());
}
