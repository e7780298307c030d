//! Codes of findings in SQL.

use super::error_code::codes;
use crate::sql::SqlCode;

impl SqlCode {
    /// Returns whether the code means that the statement could not be judged, not that it is wrong.
    pub fn is_engine_problem(self) -> bool {
        matches!(
            self,
            Self::SchemaBroken | Self::EngineMissing | Self::EngineDied | Self::EngineFailed | Self::VerifierFailed
        )
    }
}

codes! { SqlCode;
    EmptyText, 601, "sql::empty_text",
        "The text contains no statement.",
        "An empty text must not count as correct.",
        "Give one statement.",
        "SELECT 1";
    FencedText, 602, "sql::fenced_text",
        "The statement is inside a Markdown fence.",
        "The engine would receive the fence too.",
        "Remove the fence; the suggested fix contains only the statement.",
        "```sql";
    ProseAroundSql, 603, "sql::prose_around_sql",
        "The statement is surrounded by other text.",
        "The engine would receive that text too.",
        "Send only the statement.",
        "Sure! Here is your query: SELECT 1";
    TextTooLong, 604, "sql::text_too_long",
        "The text is longer than the limit.",
        "Longer texts take more time to check.",
        "Split the text, or raise `limits.input`.",
        "$ proctor sql verify --limit input=4MiB big.sql";
    NulByte, 605, "sql::nul_byte",
        "The text contains a NUL byte.",
        "Engines stop at that byte, so the rest would not be checked.",
        "Remove the byte.",
        "SELECT 'a\\0b'";
    UnterminatedToken, 606, "sql::unterminated_token",
        "A string, a name or a comment is not terminated.",
        "The rest of the text would become part of it.",
        "Terminate it.",
        "SELECT 'abc";
    SyntaxError, 607, "sql::syntax_error",
        "The engine cannot parse the statement.",
        "The statement would not run.",
        "Fix the statement at the reported position.",
        "SELEC name FROM customers";
    OtherDialect, 608, "sql::other_dialect",
        "The statement uses the syntax of another engine.",
        "This engine does not support the syntax, or gives it a different meaning.",
        "Write it as the suggestion shows.",
        "SELECT * FROM t LIMIT 10, 20";
    TooDeep, 609, "sql::too_deep",
        "The nesting of the statement is deeper than the limit.",
        "Deep nesting costs stack space and time.",
        "Reduce the nesting.",
        "SELECT ((((((1))))))";
    ParserDisagrees, 610, "sql::parser_disagrees",
        "The engine accepts the statement, but the parser for the static checks does not.",
        "Checks that need a parsed statement were skipped.",
        "No action is required; a simpler statement is checked completely.",
        "SELECT 1 IS NOT DISTINCT FROM 1";
    UnknownTable, 611, "sql::unknown_table",
        "The table does not exist.",
        "The statement would not run.",
        "Use one of the suggested names.",
        "SELECT name FROM custmers";
    UnknownColumn, 612, "sql::unknown_column",
        "The column does not exist in this table.",
        "The statement would not run.",
        "Use one of the suggested columns, or the table that has the column.",
        "SELECT nmae FROM customers";
    UnknownFunction, 613, "sql::unknown_function",
        "This engine has no such function.",
        "The statement would not run.",
        "Use one of the suggested functions.",
        "SELECT total_spnd(amount) FROM orders";
    AmbiguousColumn, 614, "sql::ambiguous_column",
        "More than one table has a column with this name.",
        "The engine cannot choose between them.",
        "Qualify the column with its table.",
        "SELECT id FROM a JOIN b ON a.x = b.x";
    WrongArguments, 615, "sql::wrong_arguments",
        "A function is called with the wrong number or types of arguments.",
        "The statement would not run.",
        "Check which arguments the function takes.",
        "SELECT round(1, 2, 3)";
    ColumnCount, 616, "sql::column_count",
        "Two lists that must have the same length differ in length.",
        "The engine cannot pair their entries.",
        "Give both the same number of columns.",
        "SELECT a FROM t UNION SELECT a, b FROM u";
    MisspeltIdentifier, 617, "sql::misspelt_identifier",
        "A name in double quotes is almost a column name; SQLite would read it as a string.",
        "The filter would silently compare a constant string.",
        "Write the column's name, or use single quotes for a string.",
        "SELECT name FROM customers WHERE \"teir\" = 'x'";
    StringInDoubleQuotes, 618, "sql::string_in_double_quotes",
        "A string is written in double quotes.",
        "Only SQLite's legacy mode accepts that; other engines and settings do not.",
        "Use single quotes.",
        "SELECT * FROM t WHERE tier = \"premium\"";
    UngroupedColumn, 619, "sql::ungrouped_column",
        "A column is neither grouped by nor aggregated.",
        "The query does not determine which row's value to return.",
        "Group by it, or aggregate it.",
        "SELECT name, COUNT(*) FROM customers";
    MisusedFunction, 620, "sql::misused_function",
        "An aggregate or a window function is used where it is not allowed.",
        "The engine rejects it there.",
        "Use HAVING, or an outer query.",
        "SELECT a FROM t WHERE COUNT(*) > 1";
    WrongType, 621, "sql::wrong_type",
        "The types of two values are incompatible.",
        "The engine does not compare or convert them.",
        "Cast one of the values.",
        "SELECT SUM(name) FROM customers";
    AlreadyThere, 622, "sql::already_there",
        "An object with this name already exists.",
        "The engine would not create it again.",
        "Use another name, or IF NOT EXISTS.",
        "CREATE TABLE customers (id INTEGER)";
    BindError, 623, "sql::bind_error",
        "The engine cannot compile the statement.",
        "The statement would not run.",
        "Fix the problem that the engine reports.",
        "INSERT INTO t VALUES (1, 2)";
    SchemaBroken, 624, "sql::schema_broken",
        "The schema itself is invalid.",
        "Statements cannot be checked against it.",
        "Fix the schema.",
        "$ proctor sql verify --schema schema.sql";
    StackedStatements, 625, "sql::stacked_statements",
        "The text contains several statements, but only one is allowed.",
        "The second statement would run unchecked.",
        "Send one statement, or allow several.",
        "SELECT 1; DROP TABLE t";
    WriteRefused, 626, "sql::write_refused",
        "The statement changes rows, but the policy is `read`.",
        "The request did not allow changes.",
        "Only read, or verify the statement under `policy: write`.",
        "DELETE FROM customers WHERE id = 1";
    SchemaChangeRefused, 627, "sql::schema_change_refused",
        "The statement changes tables, but the policy does not allow that.",
        "The request did not allow changes to the schema.",
        "Verify the statement under `policy: migrate`.",
        "DROP TABLE customers";
    UnboundedWrite, 628, "sql::unbounded_write",
        "An UPDATE or DELETE has no filter.",
        "It changes every row.",
        "Select the rows with WHERE.",
        "DELETE FROM orders";
    AlwaysTrueFilter, 629, "sql::always_true_filter",
        "The filter of an UPDATE or DELETE matches every row.",
        "It changes every row, although it looks restricted.",
        "Select the rows with WHERE.",
        "DELETE FROM orders WHERE 1 = 1";
    TransactionControl, 630, "sql::transaction_control",
        "The statement begins or ends a transaction.",
        "It would end the transaction that protects the data.",
        "Leave transactions to the caller.",
        "COMMIT; DELETE FROM t";
    DatabaseAttached, 631, "sql::database_attached",
        "The statement attaches, detaches, copies or rewrites a database.",
        "It affects data outside the checked database.",
        "Use only the tables of the given database.",
        "ATTACH 'other.db' AS o";
    SettingRefused, 632, "sql::setting_refused",
        "The statement changes a setting of the engine.",
        "The engine could then behave differently than it did during the check.",
        "Leave settings to the caller.",
        "PRAGMA writable_schema = ON";
    FileAccess, 633, "sql::file_access",
        "The statement reads or writes a file or the network.",
        "Data could enter or leave the database unnoticed.",
        "Use tables instead.",
        "SELECT * FROM read_csv('/etc/passwd')";
    FunctionRefused, 634, "sql::function_refused",
        "The statement calls a function that is not on the list.",
        "Its effects are unknown or go beyond the data of the query.",
        "Remove the call, or allow the function by name.",
        "SELECT fts3_tokenizer('simple')";
    TableRefused, 635, "sql::table_refused",
        "The statement uses a table that is not on the list.",
        "The request allows only the listed tables.",
        "Use the listed tables.",
        "$ proctor sql verify --tables customers";
    ColumnRefused, 636, "sql::column_refused",
        "The statement uses a column that is not on the list.",
        "The request allows only the listed columns of this table.",
        "Use the listed columns.",
        "$ proctor sql verify --columns customers.id";
    StatementRefused, 637, "sql::statement_refused",
        "No policy allows this kind of statement.",
        "Its effects cannot be limited.",
        "Write a query.",
        "VACUUM";
    ExecutableComment, 638, "sql::executable_comment",
        "A comment contains code that one engine executes and another ignores.",
        "The effect depends on the engine.",
        "Write the code as a statement, or remove it.",
        "SELECT 1 /*!50000 + 1 */";
    TimeLimit, 639, "sql::time_limit",
        "The statement exceeded the time limit.",
        "It would delay other statements.",
        "Query less data, or raise `limits.time`.",
        "SELECT COUNT(*) FROM a, b, c, d";
    StepLimit, 640, "sql::step_limit",
        "The statement exceeded the limit on engine steps.",
        "It would delay other statements.",
        "Add a join condition, query less data, or raise `limits.steps`.",
        "SELECT COUNT(*) FROM a, b, c, d";
    MemoryLimit, 641, "sql::memory_limit",
        "The statement exceeded the memory limit.",
        "It would take memory from other processes.",
        "Query less data, or raise `limits.memory`.",
        "SELECT randomblob(1000000000)";
    ResultLimit, 642, "sql::result_limit",
        "The result exceeded the size limit.",
        "Results are limited to a size that a caller can use.",
        "Query less data, or raise `limits.result`.",
        "SELECT randomblob(100000000)";
    EndlessRecursion, 643, "sql::endless_recursion",
        "A recursive query did not terminate.",
        "It would run forever.",
        "Add a condition that ends the recursion.",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT * FROM s";
    RunFailed, 644, "sql::run_failed",
        "The statement failed during execution.",
        "It would fail on the real data too.",
        "Fix the problem that the engine reports.",
        "SELECT json('{')";
    ConstraintBroken, 645, "sql::constraint_broken",
        "The statement violated a constraint on the test rows.",
        "It may violate the constraint on other rows too.",
        "Check the constraint in the message.",
        "INSERT INTO customers (id) VALUES (1)";
    RowsLeftOut, 646, "sql::rows_left_out",
        "The result has more rows than Proctor reads.",
        "The remaining rows were not checked.",
        "No action is required; add LIMIT to have all rows checked.",
        "SELECT * FROM big";
    AggregateExpected, 647, "sql::aggregate_expected",
        "The question asks for an aggregate value, but the query has no aggregate.",
        "The query returns rows instead of one value.",
        "Use the aggregate that the question asks for.",
        "-- how many customers?\nSELECT id FROM customers";
    OtherAggregate, 648, "sql::other_aggregate",
        "The question asks for one aggregate, but the query uses another.",
        "The query answers a different question.",
        "Use the aggregate that the question asks for.",
        "-- highest amount?\nSELECT MIN(amount) FROM orders";
    OrderExpected, 649, "sql::order_expected",
        "The question asks for a sort order, but the query has none.",
        "Without ORDER BY the order is undefined.",
        "Add ORDER BY.",
        "-- sorted by name\nSELECT name FROM customers";
    OrderReversed, 650, "sql::order_reversed",
        "The query sorts in the opposite direction.",
        "The first rows would be the last ones.",
        "Swap ASC and DESC.",
        "-- the cheapest\nSELECT name FROM products ORDER BY price DESC LIMIT 1";
    LimitExpected, 651, "sql::limit_expected",
        "The question asks for a limited number of rows, but the query returns all.",
        "The query returns more rows than the question asks for.",
        "Add LIMIT.",
        "-- top 5\nSELECT name FROM t ORDER BY n DESC";
    OtherLimit, 652, "sql::other_limit",
        "The question asks for a different number of rows.",
        "The query returns too many or too few rows.",
        "Use the number from the question in LIMIT.",
        "-- top 5\nSELECT name FROM t ORDER BY n DESC LIMIT 50";
    GroupingExpected, 653, "sql::grouping_expected",
        "The question asks for a value per group, but the query does not group.",
        "The query returns a single value.",
        "Add GROUP BY.",
        "-- orders per customer\nSELECT COUNT(*) FROM orders";
    FilterExpected, 654, "sql::filter_expected",
        "The question names a value that the query does not filter by.",
        "The query returns more than the question asks for.",
        "Add a filter on the value.",
        "-- orders in 2024\nSELECT id FROM orders";
    DistinctExpected, 655, "sql::distinct_expected",
        "The question asks for distinct values, but the query may return duplicates.",
        "The result may contain duplicates.",
        "Add DISTINCT.",
        "-- distinct tiers\nSELECT tier FROM customers";
    NegationExpected, 656, "sql::negation_expected",
        "The question asks for rows that do not match, but the query returns the matching rows.",
        "The query answers the opposite question.",
        "Negate the filter.",
        "-- who never ordered\nSELECT name FROM c WHERE id IN (SELECT customer_id FROM orders)";
    UnjoinedTables, 657, "sql::unjoined_tables",
        "Tables are joined without a condition.",
        "Every row of one table is combined with every row of the other.",
        "Join them by their keys.",
        "SELECT * FROM customers, orders";
    KeyAggregated, 658, "sql::key_aggregated",
        "A key column is summed or averaged.",
        "The value has no meaning.",
        "Count the keys, or use another column.",
        "SELECT SUM(id) FROM customers";
    EntityExpected, 659, "sql::entity_expected",
        "The question is about an entity that the query does not use.",
        "The query answers a different question.",
        "Use the table of that entity.",
        "-- customers\nSELECT name FROM products";
    EngineMissing, 660, "sql::engine_missing",
        "The engine of this dialect is not installed.",
        "Only the engine can decide whether the statement would run.",
        "Install the engine as the message describes.",
        "$ proctor sql engines";
    EngineDied, 661, "sql::engine_died",
        "The engine process died during the check.",
        "An incomplete check has no result.",
        "Simplify the statement; if the error persists, report it to the authors of the engine.",
        "$ proctor sql verify query.sql";
    EngineFailed, 662, "sql::engine_failed",
        "The engine failed for a reason unrelated to the statement.",
        "An incomplete check has no result.",
        "Try again; if the error persists, report it to the authors of Proctor.",
        "$ proctor sql verify query.sql";
    SafetyUnchecked, 663, "sql::safety_unchecked",
        "The request did not include the stage that checks what a statement may do.",
        "A statement that binds can still do harm: it may delete every row.",
        "Request the `safety` stage before you run the statement.",
        "$ proctor sql verify --stages bind query.sql";
    MetadataRefused, 664, "sql::metadata_refused",
        "The statement reads metadata of the schema, and the request has a list of tables or columns.",
        "Names, columns, indexes and definitions outside the lists must remain hidden too.",
        "Use the tables and columns that are on the lists, or describe one table whose columns are all on them.",
        "$ echo 'PRAGMA table_info(secret)' | proctor sql verify --db shop.db --tables orders";
    QuestionUnread, 665, "sql::question_unread",
        "The question is not in English.",
        "The `semantic` stage reads only English, so it did not compare the question with the query.",
        "Ask in English, or have a person compare the question with the query.",
        "$ proctor sql verify --question 'Combien de clients sont dans la base ?' query.sql";
    NullComparison, 670, "sql::null_comparison",
        "A condition compares a value with NULL.",
        "Such a comparison is never true, not even for NULL itself.",
        "Use IS NULL or IS NOT NULL.",
        "SELECT name FROM customers WHERE email = NULL";
    StringAsCondition, 671, "sql::string_as_condition",
        "A string is used as a condition.",
        "The engine converts the string to a number, usually zero, so the condition is false.",
        "Repeat the comparison, or use IN.",
        "SELECT name FROM customers WHERE name LIKE 'A%' OR 'B%'";
    ContradictoryFilter, 672, "sql::contradictory_filter",
        "Conditions of one filter contradict each other.",
        "No row can match all of them, so the result is always empty.",
        "Use OR or IN, or INTERSECT for rows that match each condition separately.",
        "SELECT name FROM customers WHERE tier = 'gold' AND tier = 'basic'";
    AccidentalCorrelation, 673, "sql::accidental_correlation",
        "A subquery returns a column that only the outer query has.",
        "The subquery compares each outer row with itself, so it filters nothing.",
        "Return a column of the subquery's own table.",
        "SELECT name FROM customers WHERE id IN (SELECT email FROM orders)";
    JoinAgainstForeignKey, 674, "sql::join_against_foreign_key",
        "Tables are joined on columns other than their foreign key.",
        "Keys of different entities match only by coincidence.",
        "Join on the foreign key.",
        "SELECT * FROM customers c JOIN orders o ON c.id = o.id";
    CustomFinding, 675, "sql::custom_finding",
        "A verifier of the operator reports a problem.",
        "The operator added a custom rule to the chain of stages.",
        "Change the statement as the verifier's message says.",
        "SELECT email FROM customers";
    VerifierFailed, 676, "sql::verifier_failed",
        "A verifier of the operator failed.",
        "A statement that a verifier could not check is not `ok`.",
        "Run the verifier's command by hand with the same input, and fix it or its entry in `proctord.toml`.",
        "SELECT 1";
}
