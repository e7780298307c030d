//! Tests drafts for repositories whose workflows run scripts or the checks of autotools.

use super::*;

fn script_commands(script: &str, lines: &[&str]) -> Vec<String> {
    let ci = workflow(lines);
    let files = [("scripts/run-tests.sh", script), (".github/workflows/ci.yml", ci.as_str())];
    commands(&scan_of(&files)).into_iter().filter(|command| command.contains("run-tests")).collect()
}

#[test]
fn scripts_of_the_repository_that_workflows_run_become_steps() {
    let script = "#!/bin/sh\nset -e\n./a\n";
    let run = |lines: &[&str]| script_commands(script, lines);
    assert_eq!(run(&["./scripts/run-tests.sh --all"]), ["./scripts/run-tests.sh --all"]);
    assert_eq!(run(&["sudo apt-get install -y bats", "bash scripts/run-tests.sh"]), ["bash scripts/run-tests.sh"]);
    // The script may need what the job made before.
    for before in ["make", "cd x", "./configure && make", "cmake --build ${{ matrix.dir }}", "npm ci"] {
        assert_eq!(run(&[before, "./scripts/run-tests.sh"]), [""; 0], "{before}");
    }
    for other in [
        "./scripts/run-tests.sh ${{ matrix.x }}",
        "scripts/run-tests.sh",
        "./run-tests.sh",
        "sh -x scripts/run-tests.sh",
    ] {
        assert_eq!(run(&[other]), [""; 0], "{other}");
    }
}

#[test]
fn scripts_that_need_more_than_the_tree_are_left_out() {
    let run = |script: &str| script_commands(script, &["./scripts/run-tests.sh"]).len();
    assert_eq!(run("#!/bin/bash\nset -e\nfor t in t/*; do $t; done\n"), 1);
    for line in ["pip install x", "curl -O y", "docker run z", "echo $GITHUB_SHA", "sudo true"] {
        assert_eq!(run(&format!("#!/bin/bash\n{line}\n")), 0, "{line}");
    }
    // The tests of another tool: the script usually calls it.
    let ci = workflow(&["./test.sh"]);
    let files = [
        ("Cargo.toml", "[package]\nname = \"a\"\n"),
        ("Cargo.lock", ""),
        ("test.sh", "#!/bin/sh\ncargo test\n"),
        (".github/workflows/ci.yml", ci.as_str()),
    ];
    assert!(!commands(&scan_of(&files)).contains(&"./test.sh".to_owned()));
}

#[test]
fn checks_of_autotools_run_in_a_copy() {
    let drafted = |lines: &[&str]| {
        let ci = workflow(lines);
        let files = [
            ("configure.ac", ""),
            ("autogen.sh", "#!/bin/sh\nautoreconf -fi\n"),
            (".github/workflows/ci.yml", ci.as_str()),
        ];
        let found = commands(&scan_of(&files)).into_iter().find(|command| command.contains("/tmp/tree"));
        found.unwrap_or_default()
    };
    let lines = [
        "sudo apt-get install automake",
        "./autogen.sh",
        "./configure --enable-x CFLAGS='-O2 -g'",
        "make -j2",
        "make check VERBOSE=1",
    ];
    assert_eq!(
        drafted(&lines),
        "sh -ec cp -a . /tmp/tree\ncd /tmp/tree\n./autogen.sh\n./configure --enable-x 'CFLAGS=-O2 -g'\nmake -j2\nmake check VERBOSE=1\n"
    );
    assert!(drafted(&["autoreconf -fi && ./configure", "make test", "make install"]).ends_with("make test\n"));
    for lines in [
        &["./configure", "make", "make install", "make check"][..],
        &["./configure ${{ matrix.flags }}", "make check"],
        &["./unknown.sh", "./configure", "make check"],
        &["make check"],
        &["./configure", "make"],
    ] {
        assert_eq!(drafted(lines), "", "{lines:?}");
    }
}
