//! Tests the search for toolchains in different homes.

use super::*;

/// A directory with files, by its canonical path.
struct FixtureDir {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl FixtureDir {
    fn with_files(files: &[(&str, &str)]) -> Self {
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

    fn path_text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Searches with this directory as the home, where everything except `visible` is hidden.
    fn find_toolchains(&self, caller: &[(&str, &str)], operator: &[&str], visible: Option<&Path>) -> HostToolchains {
        self.with_search(caller, operator, visible, HostToolchains::find).expect("looks")
    }

    fn with_search<T>(
        &self,
        caller: &[(&str, &str)],
        operator: &[&str],
        visible: Option<&Path>,
        find: impl FnOnce(&ToolchainSearch<'_>) -> T,
    ) -> T {
        // A path with the prefix `!` is a mask.
        let (masks, mounts): (Vec<&str>, Vec<&str>) = operator.iter().partition(|path| path.starts_with('!'));
        let operator = OperatorConfig {
            tool_mounts: mounts.iter().map(|path| (*path).to_owned()).collect(),
            tool_masks: masks.iter().map(|path| path.replace('!', "")).collect(),
            ..OperatorConfig::default()
        };
        self.with_config(caller, &operator, visible, find)
    }

    fn with_config<T>(
        &self,
        caller: &[(&str, &str)],
        operator: &OperatorConfig,
        visible: Option<&Path>,
        find: impl FnOnce(&ToolchainSearch<'_>) -> T,
    ) -> T {
        let caller = caller.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        find(&ToolchainSearch {
            home: &self.path,
            reader: None,
            operator,
            caller_env: &caller,
            unexposed: [&self.at("repo"), &self.at("state")],
            empty_dir: &self.at("state/empty"),
            is_hidden: &|path| {
                !["/opt", "/usr"].map(Path::new).into_iter().chain(visible).any(|seen| path.starts_with(seen))
            },
        })
    }
}

fn visible_mounts(found: &HostToolchains) -> Vec<(PathBuf, PathBuf)> {
    let shown = found.mounts.iter().filter(|tool| tool.kind != ToolKind::Masked);
    shown.map(|tool| (tool.at.clone(), tool.source.clone())).collect()
}

fn masked_paths(found: &HostToolchains) -> Vec<PathBuf> {
    found.mounts.iter().filter(|tool| tool.kind == ToolKind::Masked).map(|tool| tool.at.clone()).collect()
}

#[test]
fn never_mounts_credentials() {
    let home = FixtureDir::with_files(&[
        (".cargo/bin/cargo", ""),
        (".cargo/credentials.toml", "token"),
        (".cargo/config.toml", "[registry]\ntoken = 'x'"),
        (".ssh/id", ""),
        (".local/share/keyrings/x", ""),
    ]);
    let found = home.find_toolchains(&[], &[], None);
    let bin = home.at(".cargo/bin");
    assert_eq!(visible_mounts(&found), [(bin.clone(), bin)]);
    assert_eq!(masked_paths(&found), [""; 0].map(PathBuf::from));
    assert_eq!(found.env["CARGO_NET_OFFLINE"], "true");
}

/// The tools of version managers are visible, and their settings if they contain no secret.
#[test]
fn finds_tools_of_version_managers() {
    let files = [
        (".local/share/mise/installs/foo/1.0/bin/foo", ""),
        (".config/mise/config.toml", "[tools]\nfoo = '1.0'"),
        (".asdf/shims/foo", ""),
        (".local/share/fnm/node-versions/v20/installation/bin/node", ""),
        (".bun/bin/bun", ""),
        (".deno/bin/deno", ""),
        (".local/share/pypoetry/venv/bin/poetry", ""),
        (".cache/pypoetry/virtualenvs/x-1/bin/python", ""),
        ("miniconda3/envs/e/bin/python", ""),
        ("miniconda3/.condarc", "channels: [https://conda.anaconda.org/t/tk-token/x]"),
        (".linuxbrew/bin/brew", ""),
    ];
    let home = FixtureDir::with_files(&files);
    home.link("run/multishell", &home.at(".local/share/fnm/node-versions/v20/installation"));
    let dirs = [
        ".local/share/mise/installs/foo/1.0/bin",
        "run/multishell/bin",
        "miniconda3/envs/e/bin",
        ".cache/pypoetry/virtualenvs/x-1/bin",
        "hidden/bin",
    ];
    let path = dirs.map(|dir| home.path_text(dir)).join(":");
    let found = home.find_toolchains(&[("PATH", &path)], &[], None);
    let shown: Vec<PathBuf> = visible_mounts(&found).into_iter().map(|(at, _)| at).collect();
    for below in [
        ".local/share/mise/installs",
        ".config/mise/config.toml",
        ".asdf",
        ".local/share/fnm",
        ".bun/bin",
        ".deno/bin",
        ".local/share/pypoetry/venv",
        ".cache/pypoetry/virtualenvs",
        "miniconda3",
        ".linuxbrew/bin",
    ] {
        assert!(shown.contains(&home.at(below)), "{below}: {shown:?}");
    }
    assert_eq!(masked_paths(&found), [home.at("miniconda3/.condarc")]);
    let expected = [
        ".local/share/mise/installs/foo/1.0/bin",
        ".local/share/fnm/node-versions/v20/installation/bin",
        "miniconda3/envs/e/bin",
        ".cache/pypoetry/virtualenvs/x-1/bin",
    ];
    assert_eq!(found.path[..4], expected.map(|below| home.path_text(below)));
    for below in [".asdf/shims", ".bun/bin", ".deno/bin", ".linuxbrew/bin"] {
        assert!(found.path.contains(&home.path_text(below)), "{below}: {:?}", found.path);
    }
    assert!(!found.path.contains(&home.path_text("hidden/bin")));
    let secret = FixtureDir::with_files(&[(".config/mise/config.toml", "[env]\nAPI_TOKEN = 'x'")]);
    assert_eq!(visible_mounts(&secret.find_toolchains(&[], &[], None)), []);
}

#[test]
fn package_stores_are_mounted_as_such() {
    let home = FixtureDir::with_files(&[
        (".npm/_cacache/index-v5/x", ""),
        (".cargo/registry/cache/x", ""),
        (".cargo/bin/cargo", ""),
        (".cache/uv/x", ""),
    ]);
    let found = home.find_toolchains(&[], &[], None);
    let stores: Vec<&PathBuf> =
        found.mounts.iter().filter(|tool| tool.kind == ToolKind::Store).map(|tool| &tool.at).collect();
    assert_eq!(stores, [&home.at(".cache/uv"), &home.at(".cargo/registry"), &home.at(".npm/_cacache")]);
}

#[test]
fn mounts_config_without_secrets_and_operator_paths() {
    let home = FixtureDir::with_files(&[(".cargo/config.toml", "[net]\nretry = 1"), ("tools/x", "")]);
    let found = home.find_toolchains(&[], &["~/tools", "~/absent"], None);
    let expected = [home.at(".cargo/config.toml"), home.at("tools")];
    assert_eq!(visible_mounts(&found).into_iter().map(|(at, _)| at).collect::<Vec<_>>(), expected);
}

#[test]
fn shows_external_cargo_home_in_home() {
    let (home, elsewhere) = (
        FixtureDir::with_files(&[]),
        FixtureDir::with_files(&[("cargo/bin/cargo", ""), ("rustup/toolchains/x/y", "")]),
    );
    let (cargo, rustup) = (elsewhere.path_text("cargo"), elsewhere.path_text("rustup"));
    let found = home.find_toolchains(&[("CARGO_HOME", &cargo), ("RUSTUP_HOME", &rustup)], &[], None);
    let shown = visible_mounts(&found);
    for (at, source) in [(".cargo/bin", "cargo/bin"), (".rustup/toolchains", "rustup/toolchains")] {
        assert!(shown.contains(&(home.at(at), elsewhere.at(source))), "{shown:?}");
        assert!(shown.contains(&(elsewhere.at(source), elsewhere.at(source))), "{shown:?}");
    }
    assert_eq!(found.path[0], home.path_text(".cargo/bin"));
}

#[test]
fn keeps_only_mounted_or_installed_path_entries() {
    let home = FixtureDir::with_files(&[(".nvm/versions/node/v20/bin/node", ""), (".cargo/bin/cargo", "")]);
    let node = home.path_text(".nvm/versions/node/v20/bin");
    let out = format!("{node}/../../../../../.ssh");
    let path = format!("/evil:{node}:relative:{out}:/usr/bin:/opt/x/bin");
    let path = home.find_toolchains(&[("PATH", &path)], &[], None).path;
    assert_eq!(path[..3], [node, "/opt/x/bin".to_owned(), home.path_text(".cargo/bin")]);
    assert!(!path.contains(&"/evil".to_owned()) && !path.contains(&out), "{path:?}");
    assert_eq!(path.last().map(String::as_str), Some("/bin"));
}

#[test]
fn follows_links_and_mounts_targets_at_own_path() {
    let (home, elsewhere) = (
        FixtureDir::with_files(&[(".rustup/toolchains/plain/x", "")]),
        FixtureDir::with_files(&[("pyenv/a", ""), ("b/c", "")]),
    );
    home.link(".pyenv", &elsewhere.at("pyenv"));
    home.link(".rustup/toolchains/linked", &elsewhere.at("b"));
    home.link(".nvm", &elsewhere.at("absent"));
    let shown = visible_mounts(&home.find_toolchains(&[], &[], None));
    assert!(shown.contains(&(home.at(".pyenv"), elsewhere.at("pyenv"))), "{shown:?}");
    assert!(shown.contains(&(elsewhere.at("pyenv"), elsewhere.at("pyenv"))), "{shown:?}");
    assert!(shown.contains(&(elsewhere.at("b"), elsewhere.at("b"))), "{shown:?}");
    assert_eq!(shown.len(), 4, "{shown:?}");
}

#[test]
fn link_exposes_no_home_repository_state_or_credentials() {
    let home = FixtureDir::with_files(&[("state/caches/x", ""), ("repo/x", ""), (".ssh/id", ""), ("secret", "")]);
    home.link(".nvm", &home.path);
    home.link(".pyenv", Path::new("/"));
    home.link(".volta", &home.at("state"));
    home.link("sdk", &home.at("state/caches"));
    home.link(".local/bin", &home.at(".ssh"));
    home.link(".local/lib", &home.at("repo"));
    assert_eq!(visible_mounts(&home.find_toolchains(&[], &[], None)), []);
    let others = |path: &str| {
        home.with_search(&[], &[], None, |look| ToolMountCollector::new(look).exposes_home(Path::new(path)))
    };
    assert!(others("/home/other") && others("/home") && !others("/home/other/.nvm"));
}

#[test]
fn masks_credentials_in_mounted_directories() {
    let home = FixtureDir::with_files(&[
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
    let found =
        home.find_toolchains(&[], &["~/.cargo", "~/.config", "~/tools", "~/secrets", "!~/tools/private/key"], None);
    let expected = [
        ".cargo/config.toml",
        ".cargo/credentials.toml",
        ".nvm/versions/node/v1/etc/npmrc",
        ".pyenv/versions/v1/pip.conf",
        "secrets/npmrc",
        "tools/private/key",
    ];
    assert_eq!(masked_paths(&found), expected.map(|path| home.at(path)));
    assert!(visible_mounts(&found).contains(&(home.at(".config/gh"), home.at("state/empty"))));
}

#[test]
fn masks_secret_files_that_the_config_names() {
    let names = ["signing.pem", "cache.token", "client.key", "cluster.token", "model.key"];
    let (home, keys) =
        (FixtureDir::with_files(&[]), FixtureDir::with_files(&names.map(|name| (name, "a secret of this machine"))));
    let [signing, cache_token, client_key, cluster_token, model_key] = names.map(|name| keys.at(name));
    let text = format!(
        "[remote_cache]\nendpoint = 'grpcs://c:1'\nwrite = true\nsigning_key = '{}'\ntoken_file = '{}'\n\
         [remote_executor]\nendpoint = 'grpcs://c:1'\ntoken_file = '{}'\ntls_client_certificate = '/c'\n\
         tls_client_key = '{}'\n[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nkey = {{ file = '{}' }}\n",
        signing.display(),
        cache_token.display(),
        cluster_token.display(),
        client_key.display(),
        model_key.display(),
    );
    let operator = OperatorConfig::parse(&text).expect("a config");
    let found = home.with_config(&[], &operator, Some(&keys.path), HostToolchains::find).expect("looks");
    let mut expected = names.map(|name| keys.at(name));
    expected.sort();
    assert_eq!(masked_paths(&found), expected);
}

#[test]
fn masks_credentials_of_visible_cargo_home() {
    let files = [("bin/cargo", ""), ("credentials.toml", "token"), ("config.toml", "secret")];
    let (home, cargo) = (FixtureDir::with_files(&[]), FixtureDir::with_files(&files));
    home.link(".cargo", &cargo.path);
    let found = home.find_toolchains(&[], &[], Some(&cargo.path));
    assert_eq!(visible_mounts(&found), [(home.at(".cargo/bin"), cargo.at("bin"))]);
    assert_eq!(masked_paths(&found), [cargo.at("config.toml"), cargo.at("credentials.toml")]);
}

/// Returns the user whose rights root takes on, and whether that is another user. If this process cannot take on the
/// rights of other users, as root in a sandbox, returns its own user.
fn choose_other_user() -> (FsCredentials, bool) {
    let (others, own) = (FsCredentials { uid: 12_345, gid: 12_345 }, rustix::process::geteuid().as_raw());
    let probe_dir = FixtureDir::with_files(&[]);
    let can_give = rustix::fs::chown(&probe_dir.path, Some(rustix::fs::Uid::from_raw(others.uid)), None).is_ok();
    match can_give && others.run(|| ()).is_ok() {
        true => (others, true),
        false => (FsCredentials { uid: own, ..others }, false),
    }
}

/// A root daemon searches on behalf of another user, whose links could otherwise expose everything that root can
/// reach.
#[test]
fn skips_paths_that_reader_cannot_reach() {
    let (other_user, is_another) = choose_other_user();
    let (home, others) = (
        FixtureDir::with_files(&[(".cargo/bin/cargo", "")]),
        FixtureDir::with_files(&[("tools/x", ""), ("shown/x", "")]),
    );
    home.link(".pyenv", &others.at("tools"));
    let uid = Some(rustix::fs::Uid::from_raw(other_user.uid));
    rustix::fs::chown(&home.path, uid, None).expect("gives it away, or to ourselves");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let find = |reader| {
        let find = |look: &ToolchainSearch<'_>| HostToolchains::find(&ToolchainSearch { reader, ..*look });
        let found = home.with_search(&[], &[&others.path_text("shown")], None, find).expect("looks");
        let is_shown = |path: PathBuf| visible_mounts(&found).iter().any(|(at, _)| *at == path);
        [is_shown(home.at(".cargo/bin")), is_shown(home.at(".pyenv")), is_shown(others.at("shown"))]
    };
    assert_eq!(find(None), [true, true, true]);
    assert_eq!(find(Some(other_user)), [true, !is_another, true], "the operator shows what they name");
}

/// A link in a home is followed with its owner's rights only, even if the operator configured the path in that
/// home. Neither a mask nor a missing mask reveals whether its target exists.
#[test]
fn follows_home_links_with_owner_rights_only() {
    let (other_user, is_another) = choose_other_user();
    let others = FixtureDir::with_files(&[
        ("tools/x", ""),
        ("netrc", ""),
        ("shown/.npmrc", ""),
        ("shown/cargo/credentials", ""),
    ]);
    let home = FixtureDir::with_files(&[]);
    home.link("tools", &others.at("tools"));
    home.link(".netrc", &others.at("netrc"));
    home.link(".cargo", &others.at("shown/cargo"));
    rustix::fs::chown(&home.path, Some(rustix::fs::Uid::from_raw(other_user.uid)), None).expect("gives it away");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let operator = ["~/tools", &others.path_text("shown")];
    let find = |reader| {
        let find = |look: &ToolchainSearch<'_>| {
            HostToolchains::find(&ToolchainSearch { reader, is_hidden: &|_| false, ..*look })
        };
        home.with_search(&[], &[], None, find).expect("looks")
    };
    let netrc = |found: &HostToolchains| masked_paths(found).contains(&others.at("netrc"));
    assert!(netrc(&find(None)), "nothing hides it");
    assert_eq!(netrc(&find(Some(other_user))), !is_another, "and they cannot read it");
    let find =
        |look: &ToolchainSearch<'_>| HostToolchains::find(&ToolchainSearch { reader: Some(other_user), ..*look });
    let found = home.with_search(&[], &operator, None, find).expect("looks");
    let rights_of = |at: PathBuf| found.mounts.iter().find(|tool| tool.at == at).map(|tool| tool.rights);
    assert_eq!(rights_of(home.at("tools")), (!is_another).then_some(AccessRights::Steps));
    for ours in ["shown", "shown/.npmrc", "shown/cargo/credentials"] {
        assert_eq!(rights_of(others.at(ours)), Some(AccessRights::Ours), "{ours}: the operator shows it");
    }
}

/// Redaction must not depend on paths that the caller cannot reach, because it would reveal whether they exist.
#[test]
fn redacts_path_that_caller_cannot_reach() {
    let (FsCredentials { uid: caller, .. }, is_another) = choose_other_user();
    let (home, others) = (FixtureDir::with_files(&[("key", "")]), FixtureDir::with_files(&[("key", "")]));
    rustix::fs::chmod(&home.path, rustix::fs::Mode::from_raw_mode(0o755)).expect("opens it");
    rustix::fs::chmod(&others.path, rustix::fs::Mode::RWXU).expect("closes it");
    let is_kept = |value: &str, owner| {
        let env = BTreeMap::from([("API_KEY".to_owned(), value.to_owned())]);
        caller_redactor(&env, None, owner).redact_text(value) == value
    };
    assert!(is_kept(&others.path_text("key"), None) && is_kept(&home.path_text("key"), Some(caller)));
    assert_eq!(is_kept(&others.path_text("key"), Some(caller)), !is_another);
    assert!(!is_kept(&others.path_text("absent"), Some(caller)));
}

/// Special files could block their reader, or have no end.
#[test]
fn ignores_settings_that_are_not_regular_files() {
    let home = FixtureDir::with_files(&[(".cargo/bin/cargo", ""), (".pyenv/versions/v1/x", "")]);
    let fifo = |at: &str| {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, home.at(at), kind, mode, 0).expect("makes");
    };
    fifo(".cargo/config.toml");
    fifo(".pyenv/versions/v1/pip.conf");
    home.link(".cargo/config", Path::new("/dev/zero"));
    let found = home.find_toolchains(&[], &[], None);
    let at: Vec<_> = visible_mounts(&found).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [home.at(".cargo/bin"), home.at(".pyenv")]);
    assert_eq!(masked_paths(&found), [home.at(".pyenv/versions/v1/pip.conf")]);
}

#[test]
fn hides_repository_siblings_but_not_system_directories() {
    assert_eq!(hidden_parent(Path::new("/srv/git/a")), Some("/srv/git".into()));
    assert_eq!(hidden_parent(Path::new("/opt/a")), None);
    assert_eq!(hidden_parent(Path::new("/a")), None);
}
