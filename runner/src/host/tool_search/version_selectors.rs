//! Lists the files with which version managers select one of several installed versions of a program.

/// Paths below the home.
pub(super) const HOME_SELECTORS: [&str; 21] = [
    ".pyenv/version",
    ".rbenv/version",
    ".goenv/version",
    ".nodenv/version",
    ".jenv/version",
    ".plenv/version",
    ".phpenv/version",
    ".rustup/settings.toml",
    ".nvm/alias",
    ".nvm/alias/default",
    ".nvm/alias/lts",
    ".nvm/current",
    ".volta/hooks.json",
    ".volta/tools/user/platform.json",
    ".asdfrc",
    ".config/mise.toml",
    ".config/mise/config.toml",
    ".config/mise/config.local.toml",
    ".local/share/rtx/config.toml",
    ".sdkman/candidates/java/current",
    ".prototools",
];

/// File names in any directory. Version managers read the nearest one in the directory in which a program starts or
/// in its ancestors.
pub(super) const DIRECTORY_SELECTORS: [&str; 16] = [
    ".python-version",
    ".ruby-version",
    ".go-version",
    ".node-version",
    ".java-version",
    ".perl-version",
    ".php-version",
    ".nvmrc",
    ".tool-versions",
    ".mise.toml",
    ".mise.local.toml",
    "mise.toml",
    "mise.local.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".prototools",
];
