"""The options of runs, and the database on which SQL is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

from .socket_path import StrPath
from .wire_types import Dialect, Reuse, SkillFilter, SqlAllow, SqlBatch, SqlLimits, SqlPolicy, StageName


@dataclass(frozen=True)
class RunOptions:
    """The rarely used options of a run."""

    # A revision that names a commit; its tree is verified, instead of the worktree.
    rev: Optional[str] = None
    # `never` starts a new run even if exactly this tree has passed.
    reuse: Reuse = "verified"
    # `not_passed` runs only the skills that had not passed. Such a run is no result for the whole profile.
    skills: SkillFilter = "all"
    # The environment from which the spec takes variables; by default, the daemon's own. It may contain secrets, so it
    # is not part of the representation.
    env: Optional[Mapping[str, str]] = field(default=None, repr=False)
    # Requests with an equal key get the same run. By default, each request has a new key.
    idempotency_key: Optional[str] = None


@dataclass(frozen=True)
class SqlTarget:
    """A database or a schema, and what statements may do with it."""

    dialect: Dialect = "sqlite"
    # A database file; a relative path refers to the current directory.
    database: Optional[StrPath] = None
    # Statements that create the schema, in order, as one text or as a list of texts.
    schema: Union[str, Sequence[str]] = ()
    policy: SqlPolicy = "read"
    # The only tables and columns (`table.column`) that a statement may use; by default, all.
    tables: Sequence[str] = ()
    columns: Sequence[str] = ()
    # Functions that a statement may call in addition to the harmless ones.
    functions: Sequence[str] = ()
    limits: Optional[SqlLimits] = None
    stages: Optional[Sequence[StageName]] = None
    batch: Optional[SqlBatch] = None
    # The confidence in percent from which a warning rejects the statement; by default, warnings never reject.
    reject_at: Optional[int] = None

    def schema_texts(self) -> list[str]:
        return [self.schema] if isinstance(self.schema, str) else list(self.schema)

    def allowed_names(self) -> SqlAllow:
        # A string is a sequence too, and each of its letters would count as a name.
        if any(isinstance(names, str) for names in (self.tables, self.columns, self.functions)):
            raise TypeError("`tables`, `columns` and `functions` are lists of names")
        return {"tables": list(self.tables), "columns": list(self.columns), "functions": list(self.functions)}
