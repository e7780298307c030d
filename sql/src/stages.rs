//! Contains the stages of the chain, one file for each.

mod bind;
mod edited_text;
mod extract;
mod filter_truth;
pub(crate) mod foreign_constructs;
mod foreign_functions;
mod misspelt_keywords;
mod name_errors;
mod parse;
mod rewrite_extent;
pub(crate) mod run;
mod safety;
mod selected_rows;
mod semantic;
mod statement_binding;
mod statement_tree;
mod table_references;
mod tokenize;
mod tree_walk;
mod wrapped_answer;

use proctor_core::sql::StageName;

use crate::stage::SqlStage;

/// Returns the built-in stage with this name; `None` for [`StageName::Custom`].
pub fn built_in_stage(name: StageName) -> Option<Box<dyn SqlStage + Send + Sync>> {
    let stage: Box<dyn SqlStage + Send + Sync> = match name {
        StageName::Extract => Box::new(extract::ExtractStage),
        StageName::Tokenize => Box::new(tokenize::TokenizeStage),
        StageName::Parse => Box::new(parse::ParseStage),
        StageName::Bind => Box::new(bind::BindStage),
        StageName::Safety => Box::new(safety::SafetyStage),
        StageName::Run => Box::new(run::RunStage),
        StageName::Semantic => Box::new(semantic::SemanticStage),
        StageName::Custom => return None,
    };
    Some(stage)
}
