//! All cases, grouped by what they are about.

mod adversary;
mod applying;
mod caches;
mod callers;
mod changesets;
mod commands;
mod degrading;
mod drift;
mod environment;
mod evidence;
mod formats;
mod gate;
mod harness;
mod hiding;
mod interruption;
mod layouts;
mod limits;
mod meanwhile;
mod mistakes;
mod network;
mod order;
mod output;
mod patches;
mod places;
mod refusal;
mod repositories;
mod revisions;
mod screen;
mod spec;
mod timeout;
mod toolchain;
mod tools;
mod unprivileged;
mod verdict;
mod visibility;

use crate::needs::Case;

/// Every case.
pub(crate) fn all() -> Vec<&'static Case> {
    let groups: [&'static [Case]; 35] = [
        adversary::CASES,
        applying::CASES,
        caches::CASES,
        callers::CASES,
        changesets::CASES,
        commands::CASES,
        degrading::CASES,
        drift::CASES,
        environment::CASES,
        evidence::CASES,
        formats::CASES,
        gate::CASES,
        harness::CASES,
        hiding::CASES,
        interruption::CASES,
        layouts::CASES,
        limits::CASES,
        meanwhile::CASES,
        mistakes::CASES,
        network::CASES,
        order::CASES,
        output::CASES,
        patches::CASES,
        places::CASES,
        refusal::CASES,
        repositories::CASES,
        revisions::CASES,
        screen::CASES,
        spec::CASES,
        timeout::CASES,
        toolchain::CASES,
        tools::CASES,
        unprivileged::CASES,
        verdict::CASES,
        visibility::CASES,
    ];
    groups.into_iter().flatten().collect()
}
