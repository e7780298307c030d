//! Reads the tree of a statement as PostgreSQL prints it (`pg_proc.prosqlbody`, `pg_rewrite.ev_action`), and collects
//! the objects that the statement uses. The server has resolved every name to an object id.
//!
//! The format is that of `src/backend/nodes/outfuncs.c`: `{NODE :field value …}`, lists in parentheses, and sets of
//! numbers as `(b 8 9)`. A backslash takes the special meaning from the next character.

use std::collections::BTreeSet;

/// The objects that a statement uses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct StatementFacts {
    /// The uses of tables and views.
    pub(super) relations: Vec<RelationUse>,
    /// The object ids of the functions that the statement calls by name.
    pub(super) functions: BTreeSet<u32>,
    /// The object ids of functions that casts and operators call.
    pub(super) implicit_functions: BTreeSet<u32>,
    /// The object ids of the types of all values.
    pub(super) types: BTreeSet<u32>,
    /// The numbers of keywords with a value, such as `CURRENT_DATE` and `CURRENT_USER`.
    pub(super) keyword_values: BTreeSet<u32>,
    /// True if a common table expression is recursive.
    pub(super) is_recursive: bool,
    /// True if rows are locked, as by `FOR UPDATE`.
    pub(super) locks_rows: bool,
    /// True if a common table expression changes rows.
    pub(super) writes_in_with: bool,
    /// True if a filter is the position of a cursor (`WHERE CURRENT OF c`).
    pub(super) uses_cursor: bool,
}

/// One use of a table or a view.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct RelationUse {
    /// The object id.
    pub(super) oid: u32,
    /// The required permissions, as the bits of PostgreSQL's `ACL_…`.
    pub(super) permissions: u32,
    /// The numbers of the columns that are read, with an offset; see [`column_number`].
    pub(super) selected: Vec<i32>,
    /// The numbers of the columns that are set in new rows.
    pub(super) inserted: Vec<i32>,
    /// The numbers of the columns that are updated.
    pub(super) updated: Vec<i32>,
    /// True if the tables that inherit from the relation are left out (`ONLY`).
    pub(super) is_only: bool,
}

/// Permission bits of PostgreSQL, from `nodes/parsenodes.h`.
pub(super) const ACL_INSERT: u32 = 1;
pub(super) const ACL_SELECT: u32 = 2;
pub(super) const ACL_UPDATE: u32 = 4;
pub(super) const ACL_DELETE: u32 = 8;

/// Sets of columns contain the number of a column plus this offset, since numbers of system columns are negative.
const COLUMN_OFFSET: i32 = 7;
/// The entry of a set that stands for the whole row.
pub(super) const WHOLE_ROW: i32 = COLUMN_OFFSET;
/// The ends of the names of fields with the object id of a type, or with a list of them.
const TYPE_FIELD_ENDS: [&str; 3] = ["type", "typeid", "types"];
/// The forms of function calls that a cast makes, explicit or implicit.
const CAST_FORMS: [u32; 2] = [1, 2];

/// A node that has been opened and not yet closed.
#[derive(Default)]
struct OpenNode<'t> {
    name: &'t str,
    /// The current field.
    field: &'t str,
    relation: RelationUse,
    has_permissions: bool,
    /// The function of this node, and the form of the call.
    function: Option<u32>,
    form: u32,
}

/// One token of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    NodeStart(&'t str),
    NodeEnd,
    ListStart,
    ListEnd,
    Field(&'t str),
    Value(&'t str),
}

/// Collects the objects that a tree uses. Returns `None` if the text is not a complete tree.
pub(super) fn read(text: &str) -> Option<StatementFacts> {
    let mut facts = StatementFacts::default();
    let mut open: Vec<OpenNode<'_>> = Vec::new();
    let mut lists = 0_usize;
    let mut has_query = false;
    for token in tokens(text) {
        match token {
            Token::NodeStart(name) => {
                has_query |= name == "QUERY";
                facts.locks_rows |= name == "ROWMARKCLAUSE";
                facts.uses_cursor |= name == "CURRENTOFEXPR";
                open.push(OpenNode { name, ..OpenNode::default() });
            }
            Token::NodeEnd => close_node(open.pop()?, &mut facts),
            Token::ListStart => lists += 1,
            Token::ListEnd => lists = lists.checked_sub(1)?,
            Token::Field(field) => open.last_mut()?.field = field,
            Token::Value(value) => {
                if let Some(node) = open.last_mut() {
                    read_value(node, value, &mut facts);
                }
            }
        }
    }
    (has_query && open.is_empty() && lists == 0).then_some(facts)
}

fn read_value(node: &mut OpenNode<'_>, value: &str, facts: &mut StatementFacts) {
    let number = || value.parse::<u32>().ok();
    match node.field {
        "inh" => node.relation.is_only = value == "false",
        "relid" => node.relation.oid = number().unwrap_or_default(),
        "requiredPerms" => {
            node.has_permissions = true;
            node.relation.permissions = number().unwrap_or(u32::MAX);
        }
        "selectedCols" => node.relation.selected.extend(value.parse::<i32>()),
        "insertedCols" => node.relation.inserted.extend(value.parse::<i32>()),
        "updatedCols" => node.relation.updated.extend(value.parse::<i32>()),
        "funcid" | "aggfnoid" | "winfnoid" => node.function = number(),
        "funcformat" => node.form = number().unwrap_or_default(),
        "opfuncid" | "eqop" | "sortop" | "hashfuncid" => facts.implicit_functions.extend(number()),
        "op" if node.name == "SQLVALUEFUNCTION" => facts.keyword_values.extend(number()),
        "hasRecursive" => facts.is_recursive |= value == "true",
        "hasModifyingCTE" => facts.writes_in_with |= value == "true",
        field if TYPE_FIELD_ENDS.iter().any(|end| field.ends_with(end)) => facts.types.extend(number()),
        _ => {}
    }
}

fn close_node(node: OpenNode<'_>, facts: &mut StatementFacts) {
    if let Some(function) = node.function {
        let is_cast = CAST_FORMS.contains(&node.form);
        if is_cast {
            facts.implicit_functions.insert(function)
        } else {
            facts.functions.insert(function)
        };
    }
    // The row `excluded` of an INSERT has no permissions, since it is no table.
    if node.has_permissions && node.relation.oid != 0 && node.relation.permissions != 0 {
        facts.relations.push(node.relation);
    }
}

/// Returns the number of a column from an entry of a set; 0 is the whole row, and system columns are negative.
pub(super) fn column_number(entry: i32) -> i32 {
    entry - COLUMN_OFFSET
}

fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\n', '\t']);
        let first = *rest.as_bytes().first()?;
        let length = match first {
            b'(' | b')' | b'{' | b'}' => 1,
            _ => value_length(rest),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(match first {
            b'(' => Token::ListStart,
            b')' => Token::ListEnd,
            b'}' => Token::NodeEnd,
            b'{' => {
                let (name, after) = rest.split_at(value_length(rest));
                rest = after;
                Token::NodeStart(name)
            }
            b':' => Token::Field(&token[1..]),
            _ => Token::Value(token),
        })
    })
}

/// Returns the length of a value at the beginning of a text.
fn value_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| match byte {
        _ if is_escaped => {
            is_escaped = false;
            false
        }
        b'\\' => {
            is_escaped = true;
            false
        }
        byte => matches!(byte, b' ' | b'\n' | b'\t' | b'(' | b')' | b'{' | b'}'),
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = r#"({QUERY :commandType 1 :hasRecursive false :hasModifyingCTE true :cteList <> :rtable (
        {RANGETBLENTRY :alias <> :eref {ALIAS :aliasname a\ b :colnames ("id" "na\)me")} :rtekind 0 :relid 16384
            :relkind r :requiredPerms 6 :selectedCols (b 8 9) :insertedCols (b) :updatedCols (b 10)}
        {RANGETBLENTRY :rtekind 6 :ctename w :coltypes (o 23 16386) :requiredPerms 0 :selectedCols (b)})
        :targetList ({TARGETENTRY :expr {FUNCEXPR :funcid 871 :funcformat 0 :args ({FUNCEXPR :funcid 1740 :funcformat 2
            :args <>} {CONST :consttype 2205 :constvalue 4 [ 1 0 0 0 ]} {AGGREF :aggfnoid 2803} {SQLVALUEFUNCTION :op 10}
            {OPEXPR :opno 96 :opfuncid 65})}})})"#;

    #[test]
    fn collects_relations_functions_and_keywords() {
        let facts = read(TREE).expect("a tree");
        let customers = RelationUse {
            oid: 16384,
            permissions: ACL_SELECT | ACL_UPDATE,
            selected: vec![8, 9],
            inserted: Vec::new(),
            updated: vec![10],
            is_only: false,
        };
        assert_eq!(facts.relations, [customers]);
        assert_eq!(facts.functions, BTreeSet::from([871, 2803]));
        assert_eq!(facts.implicit_functions, BTreeSet::from([65, 1740]));
        assert_eq!(facts.keyword_values, BTreeSet::from([10]));
        assert_eq!(facts.types, BTreeSet::from([23, 2205, 16386]));
        assert!(!facts.is_recursive && !facts.locks_rows && facts.writes_in_with);
        assert_eq!([8, 7, 6].map(column_number), [1, 0, -1]);
    }

    #[test]
    fn finds_cursors() {
        let tree = "({QUERY :commandType 4 :jointree {FROMEXPR :quals {CURRENTOFEXPR :cvarno 1 :cursor_name c}}})";
        assert!(read(tree).expect("a tree").uses_cursor);
        assert!(!read(TREE).expect("a tree").uses_cursor);
    }

    #[test]
    fn rejects_incomplete_trees() {
        for end in [0, 1, 20, TREE.len() - 2, TREE.len() - 1] {
            assert_eq!(read(&TREE[..end]), None, "{end}");
        }
        assert_eq!(read("<>"), None);
    }
}
