//! Whether the query answers the question.
