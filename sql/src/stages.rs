//! Contains the stages of the chain, one file for each.

mod answers;
mod asked;
mod bind;
pub(crate) mod dialects;
mod edited;
mod extract;
mod filter;
mod names;
mod parse;
mod relations;
mod rewrite;
mod run;
mod safety;
mod semantic;
mod slips;
mod tokenize;

use proctor_core::sql::StageName;

use crate::stage::Stage;

/// Returns the built-in stage with this name.
pub fn of(name: StageName) -> Box<dyn Stage + Send + Sync> {
    match name {
        StageName::Extract => Box::new(extract::Extract),
        StageName::Tokenize => Box::new(tokenize::Tokenize),
        StageName::Parse => Box::new(parse::Parse),
        StageName::Bind => Box::new(bind::Bind),
        StageName::Safety => Box::new(safety::Safety),
        StageName::Run => Box::new(run::Run),
        StageName::Semantic => Box::new(semantic::Semantic),
    }
}
