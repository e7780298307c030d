//! Codes of findings in SQL.

use super::codes;
use crate::sql::SqlCode;

impl SqlCode {
    /// Returns whether the code means that the statement could not be judged, not that it is wrong.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::SchemaBroken | Self::EngineMissing | Self::EngineDied | Self::EngineFailed)
    }
}

codes! { SqlCode;
    EmptyText, 601, "sql::empty_text",
        "The text holds no statement.",
        "Nothing to judge is not a yes.",
        "Give one statement.",
        "SELECT 1";
    FencedText, 602, "sql::fenced_text",
        "The statement stands in a Markdown fence.",
        "The engine would be given the fence too.",
        "Take the fence away; the fix has the statement alone.",
        "```sql";
    ProseAroundSql, 603, "sql::prose_around_sql",
        "Words stand around the statement.",
        "The engine would be given them too.",
        "Answer with the statement alone.",
        "Sure! Here is your query: SELECT 1";
    TextTooLong, 604, "sql::text_too_long",
        "The text is longer than the limit.",
        "A text of any length would take any time.",
        "Split it, or raise `limits.input`.",
        "$ proctor sql verify --limit input=4MiB big.sql";
    NulByte, 605, "sql::nul_byte",
        "A zero byte stands in the text.",
        "Engines end the text there, and what follows would go unseen.",
        "Take it away.",
        "SELECT 'a\\0b'";
    UnterminatedToken, 606, "sql::unterminated_token",
        "A string, a name or a comment has no end.",
        "What follows belongs to it.",
        "Close it.",
        "SELECT 'abc";
    SyntaxError, 607, "sql::syntax_error",
        "The engine cannot read the statement.",
        "It would not run.",
        "Mend it at the place that is named.",
        "SELEC name FROM customers";
    OtherDialect, 608, "sql::other_dialect",
        "The statement is written for another engine.",
        "This one does not know that form, or means something else by it.",
        "Write it as the advice says.",
        "SELECT * FROM t LIMIT 10, 20";
    TooDeep, 609, "sql::too_deep",
        "The statement is nested deeper than the limit.",
        "Depth costs stack and time.",
        "Write it flatter.",
        "SELECT ((((((1))))))";
    ParserDisagrees, 610, "sql::parser_disagrees",
        "The engine takes the statement, and the parser that looks at its form does not.",
        "What rests on its form was not looked at.",
        "Nothing has to be done; a simpler form is looked at in full.",
        "SELECT 1 IS NOT DISTINCT FROM 1";
    UnknownTable, 611, "sql::unknown_table",
        "There is no such table.",
        "The statement would not run.",
        "Take one of the candidates.",
        "SELECT name FROM custmers";
    UnknownColumn, 612, "sql::unknown_column",
        "There is no such column there.",
        "The statement would not run.",
        "Take one of the candidates, or the table that has it.",
        "SELECT nmae FROM customers";
    UnknownFunction, 613, "sql::unknown_function",
        "This engine has no such function.",
        "The statement would not run.",
        "Take one of the candidates.",
        "SELECT total_spnd(amount) FROM orders";
    AmbiguousColumn, 614, "sql::ambiguous_column",
        "More than one table has a column of that name.",
        "The engine does not choose.",
        "Write the table before it.",
        "SELECT id FROM a JOIN b ON a.x = b.x";
    WrongArguments, 615, "sql::wrong_arguments",
        "A function is called with a number or types of arguments that it does not take.",
        "The statement would not run.",
        "Look at what the function takes.",
        "SELECT round(1, 2, 3)";
    ColumnCount, 616, "sql::column_count",
        "Two lists that belong together have different lengths.",
        "The engine cannot match them.",
        "Give both the same number of columns.",
        "SELECT a FROM t UNION SELECT a, b FROM u";
    MisspeltIdentifier, 617, "sql::misspelt_identifier",
        "A name in double quotes is no column, though nearly one, and SQLite would take it for a string.",
        "The filter would compare a text with itself, silently.",
        "Write the column's name, or single quotes for a string.",
        "SELECT name FROM customers WHERE \"teir\" = 'x'";
    StringInDoubleQuotes, 618, "sql::string_in_double_quotes",
        "A string stands in double quotes.",
        "SQLite takes it so by an old habit; other engines and later settings do not.",
        "Write single quotes.",
        "SELECT * FROM t WHERE tier = \"premium\"";
    UngroupedColumn, 619, "sql::ungrouped_column",
        "A column is neither grouped by nor aggregated.",
        "Which of its rows is meant is not said.",
        "Group by it, or aggregate it.",
        "SELECT name, COUNT(*) FROM customers";
    MisusedFunction, 620, "sql::misused_function",
        "An aggregate or a window function stands where there can be none.",
        "The engine refuses it there.",
        "Use HAVING, or a query around it.",
        "SELECT a FROM t WHERE COUNT(*) > 1";
    WrongType, 621, "sql::wrong_type",
        "Values of types that do not go together.",
        "The engine refuses to compare or convert them.",
        "Cast one of them.",
        "SELECT SUM(name) FROM customers";
    AlreadyThere, 622, "sql::already_there",
        "Something of that name exists.",
        "It would not be made again.",
        "Use another name, or IF NOT EXISTS.",
        "CREATE TABLE customers (id INTEGER)";
    BindError, 623, "sql::bind_error",
        "The engine cannot make a program of the statement.",
        "It would not run.",
        "Mend what the engine names.",
        "INSERT INTO t VALUES (1, 2)";
    SchemaBroken, 624, "sql::schema_broken",
        "The schema itself cannot be set up.",
        "Nothing can be judged against it.",
        "Mend the schema.",
        "$ proctor sql verify --schema schema.sql";
    StackedStatements, 625, "sql::stacked_statements",
        "More than one statement stands where one was to be.",
        "The second one runs unseen where only the first is looked at.",
        "Give one statement, or say that there may be many.",
        "SELECT 1; DROP TABLE t";
    WriteRefused, 626, "sql::write_refused",
        "The statement changes rows, and the policy is to read.",
        "Nobody asked for a change.",
        "Read only, or judge it under `policy: write`.",
        "DELETE FROM customers WHERE id = 1";
    SchemaChangeRefused, 627, "sql::schema_change_refused",
        "The statement changes tables, and the policy does not allow that.",
        "Nobody asked for a change of the schema.",
        "Judge it under `policy: migrate`.",
        "DROP TABLE customers";
    UnboundedWrite, 628, "sql::unbounded_write",
        "An UPDATE or DELETE without a filter.",
        "It touches every row.",
        "Say which rows by WHERE.",
        "DELETE FROM orders";
    AlwaysTrueFilter, 629, "sql::always_true_filter",
        "The filter of an UPDATE or DELETE holds for every row.",
        "It touches every row, and hides that it does.",
        "Say which rows by WHERE.",
        "DELETE FROM orders WHERE 1 = 1";
    TransactionControl, 630, "sql::transaction_control",
        "The statement begins or ends a transaction.",
        "It would undo the one that guards it.",
        "Leave transactions to who runs it.",
        "COMMIT; DELETE FROM t";
    DatabaseAttached, 631, "sql::database_attached",
        "The statement attaches, detaches, copies or rewrites a database.",
        "It reaches beyond what was judged.",
        "Name only what is there.",
        "ATTACH 'other.db' AS o";
    SettingRefused, 632, "sql::setting_refused",
        "The statement changes how the engine works.",
        "What was judged would not be what runs.",
        "Leave settings to who runs it.",
        "PRAGMA writable_schema = ON";
    FileAccess, 633, "sql::file_access",
        "The statement reads or writes a file or the network.",
        "Data would come in or go out unseen.",
        "Use tables.",
        "SELECT * FROM read_csv('/etc/passwd')";
    FunctionRefused, 634, "sql::function_refused",
        "A function that is not on the list.",
        "It reaches beyond rows, or nobody knows what it does.",
        "Leave it out, or allow it by name.",
        "SELECT fts3_tokenizer('simple')";
    TableRefused, 635, "sql::table_refused",
        "A table that is not on the list.",
        "Only some may be named.",
        "Use those.",
        "$ proctor sql verify --tables customers";
    ColumnRefused, 636, "sql::column_refused",
        "A column that is not on the list.",
        "Only some of its table may be named.",
        "Use those.",
        "$ proctor sql verify --columns customers.id";
    StatementRefused, 637, "sql::statement_refused",
        "A kind of statement that no policy allows.",
        "What it does cannot be bounded.",
        "Write a query.",
        "VACUUM";
    ExecutableComment, 638, "sql::executable_comment",
        "A comment that one engine runs and another passes over.",
        "What runs depends on who reads it.",
        "Write it as a statement, or leave it out.",
        "SELECT 1 /*!50000 + 1 */";
    TimeLimit, 639, "sql::time_limit",
        "It did not end in its time.",
        "It would hold others up.",
        "Ask for less, or raise `limits.time`.",
        "SELECT COUNT(*) FROM a, b, c, d";
    StepLimit, 640, "sql::step_limit",
        "It took more steps of the engine than it may.",
        "It would hold others up.",
        "Join by a condition, ask for less, or raise `limits.steps`.",
        "SELECT COUNT(*) FROM a, b, c, d";
    MemoryLimit, 641, "sql::memory_limit",
        "It took more memory than it may.",
        "It would take others' memory.",
        "Ask for less, or raise `limits.memory`.",
        "SELECT randomblob(1000000000)";
    ResultLimit, 642, "sql::result_limit",
        "The result is larger than it may be.",
        "Nobody reads so much.",
        "Ask for less, or raise `limits.result`.",
        "SELECT randomblob(100000000)";
    EndlessRecursion, 643, "sql::endless_recursion",
        "A recursive query did not come to an end.",
        "It would run for ever.",
        "Give the recursive part a bound.",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT * FROM s";
    RunFailed, 644, "sql::run_failed",
        "The statement failed when it ran.",
        "It would fail there too.",
        "Mend what the engine names.",
        "SELECT json('{')";
    ConstraintBroken, 645, "sql::constraint_broken",
        "The statement broke a constraint on the rows that it was tried on.",
        "It may do so on others.",
        "Look at the constraint that is named.",
        "INSERT INTO customers (id) VALUES (1)";
    RowsLeftOut, 646, "sql::rows_left_out",
        "More rows came than are read.",
        "The rest was not looked at.",
        "Nothing has to be done; a LIMIT makes it whole.",
        "SELECT * FROM big";
    AggregateExpected, 647, "sql::aggregate_expected",
        "The question asks for a figure over rows, and the query has none.",
        "It answers with rows.",
        "Use the aggregate that is asked for.",
        "-- how many customers?\nSELECT id FROM customers";
    OtherAggregate, 648, "sql::other_aggregate",
        "The question asks for one aggregate, and the query has another.",
        "It answers another question.",
        "Use the aggregate that is asked for.",
        "-- highest amount?\nSELECT MIN(amount) FROM orders";
    OrderExpected, 649, "sql::order_expected",
        "The question asks for an order, and the query has none.",
        "Rows come in any order.",
        "Add ORDER BY.",
        "-- sorted by name\nSELECT name FROM customers";
    OrderReversed, 650, "sql::order_reversed",
        "The query sorts the other way.",
        "The first rows are the last ones.",
        "Turn ASC and DESC round.",
        "-- the cheapest\nSELECT name FROM products ORDER BY price DESC LIMIT 1";
    LimitExpected, 651, "sql::limit_expected",
        "The question asks for some rows, and the query gives all.",
        "It answers with more than was asked for.",
        "Add LIMIT.",
        "-- top 5\nSELECT name FROM t ORDER BY n DESC";
    OtherLimit, 652, "sql::other_limit",
        "The question asks for another number of rows.",
        "It answers with more or fewer.",
        "Give LIMIT the number that is asked for.",
        "-- top 5\nSELECT name FROM t ORDER BY n DESC LIMIT 50";
    GroupingExpected, 653, "sql::grouping_expected",
        "The question asks for a figure for each of something, and the query does not group.",
        "It answers with one figure.",
        "Add GROUP BY.",
        "-- orders per customer\nSELECT COUNT(*) FROM orders";
    FilterExpected, 654, "sql::filter_expected",
        "The question names a value that the query does not look for.",
        "It answers for more than was asked about.",
        "Filter by it.",
        "-- orders in 2024\nSELECT id FROM orders";
    DistinctExpected, 655, "sql::distinct_expected",
        "The question asks for different values, and the query may repeat them.",
        "It answers with duplicates.",
        "Add DISTINCT.",
        "-- distinct tiers\nSELECT tier FROM customers";
    NegationExpected, 656, "sql::negation_expected",
        "The question asks for what is not so, and the query for what is.",
        "It answers the opposite.",
        "Negate the filter.",
        "-- who never ordered\nSELECT name FROM c WHERE id IN (SELECT customer_id FROM orders)";
    UnjoinedTables, 657, "sql::unjoined_tables",
        "Tables are joined without a condition.",
        "Each row of one meets each of the other.",
        "Join them by their keys.",
        "SELECT * FROM customers, orders";
    KeyAggregated, 658, "sql::key_aggregated",
        "A key is added up or averaged.",
        "The figure has no meaning.",
        "Count it, or take another column.",
        "SELECT SUM(id) FROM customers";
    EntityExpected, 659, "sql::entity_expected",
        "The question is about something that the query does not touch.",
        "It answers about something else.",
        "Use the table that has it.",
        "-- customers\nSELECT name FROM products";
    EngineMissing, 660, "sql::engine_missing",
        "The engine of this dialect is not there.",
        "Nobody else can say whether it would run.",
        "Install it as the message says.",
        "$ proctor sql engines";
    EngineDied, 661, "sql::engine_died",
        "The engine ended while it judged.",
        "Half an answer is none.",
        "Simplify the statement; if it persists, tell its authors.",
        "$ proctor sql verify query.sql";
    EngineFailed, 662, "sql::engine_failed",
        "The engine failed in a way that says nothing about the statement.",
        "Half an answer is none.",
        "Try again; if it persists, tell us.",
        "$ proctor sql verify query.sql";
    SafetyUnchecked, 663, "sql::safety_unchecked",
        "The stage that looks at what a statement may do was not asked for.",
        "That it binds says nothing of what it does: it may delete every row.",
        "Ask for `safety` before anybody runs it.",
        "$ proctor sql verify --stages bind query.sql";
    MetadataRefused, 664, "sql::metadata_refused",
        "The statement reads what the schema holds, and the request has a list of tables or of columns.",
        "Names, columns, indexes and definitions of what is off the lists are not to be seen either.",
        "Use the tables and columns that are on the lists, or describe one table whose columns are all on them.",
        "$ echo 'PRAGMA table_info(secret)' | proctor sql verify --db shop.db --tables orders";
    QuestionUnread, 665, "sql::question_unread",
        "The question is not in English.",
        "The stage `semantic` reads English only, so it compared nothing of the question with the query.",
        "Ask in English, or have a person compare the query with the question.",
        "$ proctor sql verify --question 'Combien de clients sont dans la base ?' query.sql";
    NullComparison, 670, "sql::null_comparison",
        "A condition compares a value with NULL.",
        "Such a comparison is never true, not even for NULL itself.",
        "Use IS NULL or IS NOT NULL.",
        "SELECT name FROM customers WHERE email = NULL";
    StringAsCondition, 671, "sql::string_as_condition",
        "A text stands where a condition is expected.",
        "The engine takes it as a number, which is zero, so it is never true.",
        "Repeat the comparison, or use IN.",
        "SELECT name FROM customers WHERE name LIKE 'A%' OR 'B%'";
    ContradictoryFilter, 672, "sql::contradictory_filter",
        "Conditions of one filter exclude each other.",
        "No row can meet all of them, so the result is always empty.",
        "Use OR or IN, or INTERSECT for rows that meet each condition apart.",
        "SELECT name FROM customers WHERE tier = 'gold' AND tier = 'basic'";
    AccidentalCorrelation, 673, "sql::accidental_correlation",
        "A subquery returns a column that only the outer query has.",
        "It compares each outer row with itself, so the subquery filters nothing.",
        "Return a column of the subquery's own table.",
        "SELECT name FROM customers WHERE id IN (SELECT email FROM orders)";
    JoinAgainstForeignKey, 674, "sql::join_against_foreign_key",
        "Tables are joined by other columns than their foreign key.",
        "Keys of different things are equal only by chance.",
        "Join by the foreign key.",
        "SELECT * FROM customers c JOIN orders o ON c.id = o.id";
}
