//! Tests the search for toolchains in different homes.

use super::*;

/// A directory with files, by its canonical path.
struct Dir {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Dir {
    fn with(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("temp");
        let path = fs::canonicalize(dir.path()).expect("it is there");
        for (name, text) in files {
            let file = path.join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("makes");
            #[expect(clippy::disallowed_methods, reason = "a fixture, not a Proctor document")]
            fs::write(file, text).expect("writes");
        }
        Self { path, _dir: dir }
    }

    fn link(&self, name: &str, target: &Path) {
        let link = self.path.join(name);
        fs::create_dir_all(link.parent().expect("a parent")).expect("makes");
        std::os::unix::fs::symlink(target, link).expect("links");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Searches with this directory as the home, where everything except `visible` is hidden.
    fn look(&self, caller: &[(&str, &str)], operator: &[&str], visible: Option<&Path>) -> Toolchains {
        self.looking(caller, operator, visible, Toolchains::find).expect("looks")
    }

    fn looking<T>(
        &self,
        caller: &[(&str, &str)],
        operator: &[&str],
        visible: Option<&Path>,
        find: impl FnOnce(&Look<'_>) -> T,
    ) -> T {
        let caller = caller.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        // A path with the prefix `!` is a mask.
        let (masks, mounts): (Vec<&str>, Vec<&str>) = operator.iter().partition(|path| path.starts_with('!'));
        let operator = Operator {
            tool_mounts: mounts.iter().map(|path| (*path).to_owned()).collect(),
            tool_masks: masks.iter().map(|path| path.replace('!', "")).collect(),
            ..Operator::default()
        };
        find(&Look {
            home: &self.path,
            reader: None,
            operator: &operator,
            caller: &caller,
            kept: [&self.at("repo"), &self.at("state")],
            empty: &self.at("state/empty"),
            is_hidden: &|path| {
                !["/opt", "/usr"].map(Path::new).into_iter().chain(visible).any(|seen| path.starts_with(seen))
            },
        })
    }
}

fn shown(found: &Toolchains) -> Vec<(PathBuf, PathBuf)> {
    let shown = found.mounts.iter().filter(|tool| tool.kind == ToolKind::ReadOnly);
    shown.map(|tool| (tool.at.clone(), tool.source.clone())).collect()
}

fn masked(found: &Toolchains) -> Vec<PathBuf> {
    found.mounts.iter().filter(|tool| tool.kind == ToolKind::Masked).map(|tool| tool.at.clone()).collect()
}

#[test]
fn credentials_are_never_mounted() {
    let home = Dir::with(&[
        (".cargo/bin/cargo", ""),
        (".cargo/credentials.toml", "token"),
        (".cargo/config.toml", "[registry]\ntoken = 'x'"),
        (".ssh/id", ""),
        (".local/share/keyrings/x", ""),
    ]);
    let found = home.look(&[], &[], None);
    let bin = home.at(".cargo/bin");
    assert_eq!(shown(&found), [(bin.clone(), bin)]);
    assert_eq!(masked(&found), [""; 0].map(PathBuf::from));
    assert_eq!(found.env["CARGO_NET_OFFLINE"], "true");
}

#[test]
fn a_config_without_secrets_and_the_operators_paths_are_mounted() {
    let home = Dir::with(&[(".cargo/config.toml", "[net]\nretry = 1"), ("tools/x", "")]);
    let found = home.look(&[], &["~/tools", "~/absent"], None);
    let expected = [home.at(".cargo/config.toml"), home.at("tools")];
    assert_eq!(shown(&found).into_iter().map(|(at, _)| at).collect::<Vec<_>>(), expected);
}

#[test]
fn a_cargo_home_elsewhere_appears_in_the_home() {
    let (home, elsewhere) = (Dir::with(&[]), Dir::with(&[("cargo/bin/cargo", ""), ("rustup/toolchains/x/y", "")]));
    let (cargo, rustup) = (elsewhere.text("cargo"), elsewhere.text("rustup"));
    let found = home.look(&[("CARGO_HOME", &cargo), ("RUSTUP_HOME", &rustup)], &[], None);
    let shown = shown(&found);
    for (at, source) in [(".cargo/bin", "cargo/bin"), (".rustup/toolchains", "rustup/toolchains")] {
        assert!(shown.contains(&(home.at(at), elsewhere.at(source))), "{shown:?}");
        assert!(shown.contains(&(elsewhere.at(source), elsewhere.at(source))), "{shown:?}");
    }
    assert_eq!(found.path[0], home.text(".cargo/bin"));
}

#[test]
fn of_the_callers_path_only_what_is_mounted_or_installed_counts() {
    let home = Dir::with(&[(".nvm/versions/node/v20/bin/node", ""), (".cargo/bin/cargo", "")]);
    let node = home.text(".nvm/versions/node/v20/bin");
    let out = format!("{node}/../../../../../.ssh");
    let path = format!("/evil:{node}:relative:{out}:/usr/bin:/opt/x/bin");
    let path = home.look(&[("PATH", &path)], &[], None).path;
    assert_eq!(path[..3], [node, "/opt/x/bin".to_owned(), home.text(".cargo/bin")]);
    assert!(!path.contains(&"/evil".to_owned()) && !path.contains(&out), "{path:?}");
    assert_eq!(path.last().map(String::as_str), Some("/bin"));
}

#[test]
fn links_are_followed_and_what_they_lead_to_is_found_by_its_own_path() {
    let (home, elsewhere) =
        (Dir::with(&[(".rustup/toolchains/plain/x", "")]), Dir::with(&[("pyenv/a", ""), ("b/c", "")]));
    home.link(".pyenv", &elsewhere.at("pyenv"));
    home.link(".rustup/toolchains/linked", &elsewhere.at("b"));
    home.link(".nvm", &elsewhere.at("absent"));
    let shown = shown(&home.look(&[], &[], None));
    assert!(shown.contains(&(home.at(".pyenv"), elsewhere.at("pyenv"))), "{shown:?}");
    assert!(shown.contains(&(elsewhere.at("pyenv"), elsewhere.at("pyenv"))), "{shown:?}");
    assert!(shown.contains(&(elsewhere.at("b"), elsewhere.at("b"))), "{shown:?}");
    assert_eq!(shown.len(), 4, "{shown:?}");
}

#[test]
fn a_link_shows_neither_a_home_nor_what_is_ours_nor_credentials() {
    let home = Dir::with(&[("state/caches/x", ""), ("repo/x", ""), (".ssh/id", ""), ("secret", "")]);
    home.link(".nvm", &home.path);
    home.link(".pyenv", Path::new("/"));
    home.link(".volta", &home.at("state"));
    home.link("sdk", &home.at("state/caches"));
    home.link(".local/bin", &home.at(".ssh"));
    home.link(".local/lib", &home.at("repo"));
    assert_eq!(shown(&home.look(&[], &[], None)), []);
    let others = |path: &str| home.looking(&[], &[], None, |look| Shown::new(look).shows_a_home(Path::new(path)));
    assert!(others("/home/other") && others("/home") && !others("/home/other/.nvm"));
}

#[test]
fn credentials_in_what_is_shown_are_masked() {
    let home = Dir::with(&[
        (".cargo/credentials.toml", "token"),
        (".cargo/config.toml", "token"),
        (".config/gh/hosts.yml", "token"),
        (".nvm/versions/node/v1/etc/npmrc", "//x/:_authToken=y"),
        (".nvm/versions/node/v2/etc/npmrc", "prefix=/x"),
        (".pyenv/versions/v1/pip.conf", "[global]\nindex-url = https://u:p@x/"),
        ("secrets/npmrc", ""),
        ("tools/private/key", ""),
        ("tools/x", ""),
    ]);
    home.link("tools/.npmrc", &home.at("secrets/npmrc"));
    let found = home.look(&[], &["~/.cargo", "~/.config", "~/tools", "~/secrets", "!~/tools/private/key"], None);
    let expected = [
        ".cargo/config.toml",
        ".cargo/credentials.toml",
        ".nvm/versions/node/v1/etc/npmrc",
        ".pyenv/versions/v1/pip.conf",
        "secrets/npmrc",
        "tools/private/key",
    ];
    assert_eq!(masked(&found), expected.map(|path| home.at(path)));
    assert!(shown(&found).contains(&(home.at(".config/gh"), home.at("state/empty"))));
}

#[test]
fn credentials_of_a_cargo_home_that_nothing_hides_are_masked() {
    let files = [("bin/cargo", ""), ("credentials.toml", "token"), ("config.toml", "secret")];
    let (home, cargo) = (Dir::with(&[]), Dir::with(&files));
    home.link(".cargo", &cargo.path);
    let found = home.look(&[], &[], Some(&cargo.path));
    assert_eq!(shown(&found), [(home.at(".cargo/bin"), cargo.at("bin"))]);
    assert_eq!(masked(&found), [cargo.at("config.toml"), cargo.at("credentials.toml")]);
}

/// Returns the user whose rights root takes on, and whether that is another user. If we cannot take on the rights
/// of others, as root in a sandbox, it is our own user.
fn somebody() -> (Reader, bool) {
    let (others, own) = (Reader { uid: 12_345, gid: 12_345 }, rustix::process::geteuid().as_raw());
    let tried = Dir::with(&[]);
    let can_give = rustix::fs::chown(&tried.path, Some(rustix::fs::Uid::from_raw(others.uid)), None).is_ok();
    match can_give && others.look(|| ()).is_ok() {
        true => (others, true),
        false => (Reader { uid: own, ..others }, false),
    }
}

/// A root daemon searches on behalf of another user, whose links could otherwise expose everything that root can
/// reach.
#[test]
fn what_the_reader_cannot_reach_is_not_found() {
    let (somebody, is_another) = somebody();
    let (home, others) = (Dir::with(&[(".cargo/bin/cargo", "")]), Dir::with(&[("tools/x", ""), ("shown/x", "")]));
    home.link(".pyenv", &others.at("tools"));
    let uid = Some(rustix::fs::Uid::from_raw(somebody.uid));
    rustix::fs::chown(&home.path, uid, None).expect("gives it away, or to ourselves");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let find = |reader| {
        let find = |look: &Look<'_>| Toolchains::find(&Look { reader, ..*look });
        let found = home.looking(&[], &[&others.text("shown")], None, find).expect("looks");
        let is_shown = |path: PathBuf| shown(&found).iter().any(|(at, _)| *at == path);
        [is_shown(home.at(".cargo/bin")), is_shown(home.at(".pyenv")), is_shown(others.at("shown"))]
    };
    assert_eq!(find(None), [true, true, true]);
    assert_eq!(find(Some(somebody)), [true, !is_another, true], "the operator shows what they name");
}

/// A link in a home is followed with its owner's rights only, even if the operator configured the path in that
/// home. Neither a mask nor a missing mask reveals whether its target exists.
#[test]
fn a_home_leads_nobody_further_than_its_owner_reaches() {
    let (somebody, is_another) = somebody();
    let others = Dir::with(&[("tools/x", ""), ("netrc", ""), ("shown/.npmrc", ""), ("shown/cargo/credentials", "")]);
    let home = Dir::with(&[]);
    home.link("tools", &others.at("tools"));
    home.link(".netrc", &others.at("netrc"));
    home.link(".cargo", &others.at("shown/cargo"));
    rustix::fs::chown(&home.path, Some(rustix::fs::Uid::from_raw(somebody.uid)), None).expect("gives it away");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let operator = ["~/tools", &others.text("shown")];
    let find = |reader| {
        let find = |look: &Look<'_>| Toolchains::find(&Look { reader, is_hidden: &|_| false, ..*look });
        home.looking(&[], &[], None, find).expect("looks")
    };
    let netrc = |found: &Toolchains| masked(found).contains(&others.at("netrc"));
    assert!(netrc(&find(None)), "nothing hides it");
    assert_eq!(netrc(&find(Some(somebody))), !is_another, "and they cannot read it");
    let find = |look: &Look<'_>| Toolchains::find(&Look { reader: Some(somebody), ..*look });
    let found = home.looking(&[], &operator, None, find).expect("looks");
    let rights_of = |at: PathBuf| found.mounts.iter().find(|tool| tool.at == at).map(|tool| tool.rights);
    assert_eq!(rights_of(home.at("tools")), (!is_another).then_some(Rights::Steps));
    for ours in ["shown", "shown/.npmrc", "shown/cargo/credentials"] {
        assert_eq!(rights_of(others.at(ours)), Some(Rights::Ours), "{ours}: the operator shows it");
    }
}

/// Redaction must not depend on paths that the caller cannot reach, because it would reveal whether they exist.
#[test]
fn a_path_that_a_caller_cannot_reach_is_a_secret_like_any_other() {
    let (Reader { uid: caller, .. }, is_another) = somebody();
    let (home, others) = (Dir::with(&[("key", "")]), Dir::with(&[("key", "")]));
    rustix::fs::chmod(&home.path, rustix::fs::Mode::from_raw_mode(0o755)).expect("opens it");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let is_kept = |value: &str, owner| {
        let env = BTreeMap::from([("API_KEY".to_owned(), value.to_owned())]);
        secrets_of(&env, &BTreeMap::new(), owner).text(value) == value
    };
    assert!(is_kept(&others.text("key"), None) && is_kept(&home.text("key"), Some(caller)));
    assert_eq!(is_kept(&others.text("key"), Some(caller)), !is_another);
    assert!(!is_kept(&others.text("absent"), Some(caller)));
}

/// Special files could block their reader, or have no end.
#[test]
fn settings_that_are_no_file_are_not_read() {
    let home = Dir::with(&[(".cargo/bin/cargo", ""), (".pyenv/versions/v1/x", "")]);
    let fifo = |at: &str| {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, home.at(at), kind, mode, 0).expect("makes");
    };
    fifo(".cargo/config.toml");
    fifo(".pyenv/versions/v1/pip.conf");
    home.link(".cargo/config", Path::new("/dev/zero"));
    let found = home.look(&[], &[], None);
    let at: Vec<_> = shown(&found).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [home.at(".cargo/bin"), home.at(".pyenv")]);
    assert_eq!(masked(&found), [home.at(".pyenv/versions/v1/pip.conf")]);
}

#[test]
fn the_neighbours_of_a_repository_are_hidden_but_the_system_is_not() {
    assert_eq!(neighbourhood(Path::new("/srv/git/a")), Some("/srv/git".into()));
    assert_eq!(neighbourhood(Path::new("/opt/a")), None);
    assert_eq!(neighbourhood(Path::new("/a")), None);
}
