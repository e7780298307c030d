//! Declares the functions of DuckDB's C API with their types, and wraps its objects in handles that are destroyed
//! once. All `unsafe` code of this crate is here and in [`chunk`]. Source: `duckdb.h` of DuckDB 1.4 and 1.5.
#![expect(unsafe_code, reason = "a C library that is loaded at run time is called through pointers")]

mod chunk;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::api_constants::{StatementType, type_name};
use crate::error::DuckDbError;
pub use chunk::{Chunk, ColumnCells};

/// An opaque object of the library.
type OpaquePtr = *mut c_void;

/// `duckdb_result`: five deprecated fields, and the pointer to the data.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawResult {
    columns: u64,
    rows: u64,
    changed: u64,
    old_columns: OpaquePtr,
    old_error: OpaquePtr,
    data: OpaquePtr,
}

const NO_RESULT: RawResult =
    RawResult { columns: 0, rows: 0, changed: 0, old_columns: null_mut(), old_error: null_mut(), data: null_mut() };

/// `DuckDBSuccess`.
const SUCCESS: u32 = 0;

macro_rules! api {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the loaded library.
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the library loaded, on which the function pointers depend.
            _library: Handle,
        }

        impl Api {
            fn load_symbols(library: Handle) -> Result<Self, DuckDbError> {
                // SAFETY: each symbol is a function of `duckdb.h` and has the type that is listed below; the library
                // is stored next to the pointers, so they stay valid.
                unsafe {
                    Ok(Self {
                        $($name: *library
                            .get(concat!("duckdb_", stringify!($name), "\0").as_bytes())
                            .map_err(|source| DuckDbError::MissingFunction {
                                name: concat!("duckdb_", stringify!($name)),
                                source,
                            })?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

api! {
    library_version: fn() -> *const c_char;
    free: fn(OpaquePtr);
    create_config: fn(*mut OpaquePtr) -> u32;
    set_config: fn(OpaquePtr, *const c_char, *const c_char) -> u32;
    destroy_config: fn(*mut OpaquePtr);
    open_ext: fn(*const c_char, *mut OpaquePtr, OpaquePtr, *mut *mut c_char) -> u32;
    close: fn(*mut OpaquePtr);
    connect: fn(OpaquePtr, *mut OpaquePtr) -> u32;
    disconnect: fn(*mut OpaquePtr);
    interrupt: fn(OpaquePtr);
    extract_statements: fn(OpaquePtr, *const c_char, *mut OpaquePtr) -> u64;
    extract_statements_error: fn(OpaquePtr) -> *const c_char;
    destroy_extracted: fn(*mut OpaquePtr);
    prepare_extracted_statement: fn(OpaquePtr, OpaquePtr, u64, *mut OpaquePtr) -> u32;
    prepare_error: fn(OpaquePtr) -> *const c_char;
    destroy_prepare: fn(*mut OpaquePtr);
    prepared_statement_type: fn(OpaquePtr) -> u32;
    nparams: fn(OpaquePtr) -> u64;
    bind_varchar_length: fn(OpaquePtr, u64, *const c_char, u64) -> u32;
    bind_null: fn(OpaquePtr, u64) -> u32;
    prepared_statement_column_count: fn(OpaquePtr) -> u64;
    prepared_statement_column_name: fn(OpaquePtr, u64) -> *const c_char;
    prepared_statement_column_type: fn(OpaquePtr, u64) -> u32;
    pending_prepared_streaming: fn(OpaquePtr, *mut OpaquePtr) -> u32;
    pending_error: fn(OpaquePtr) -> *const c_char;
    execute_pending: fn(OpaquePtr, *mut RawResult) -> u32;
    destroy_pending: fn(*mut OpaquePtr);
    result_error: fn(*mut RawResult) -> *const c_char;
    result_return_type: fn(RawResult) -> u32;
    destroy_result: fn(*mut RawResult);
    fetch_chunk: fn(RawResult) -> OpaquePtr;
    destroy_data_chunk: fn(*mut OpaquePtr);
    data_chunk_get_size: fn(OpaquePtr) -> u64;
    data_chunk_get_column_count: fn(OpaquePtr) -> u64;
    data_chunk_get_vector: fn(OpaquePtr, u64) -> OpaquePtr;
    vector_get_column_type: fn(OpaquePtr) -> OpaquePtr;
    vector_get_data: fn(OpaquePtr) -> OpaquePtr;
    vector_get_validity: fn(OpaquePtr) -> *const u64;
    get_type_id: fn(OpaquePtr) -> u32;
    destroy_logical_type: fn(*mut OpaquePtr);
    list_vector_get_child: fn(OpaquePtr) -> OpaquePtr;
    list_vector_get_size: fn(OpaquePtr) -> u64;
    struct_type_child_count: fn(OpaquePtr) -> u64;
    struct_vector_get_child: fn(OpaquePtr, u64) -> OpaquePtr;
    struct_type_child_name: fn(OpaquePtr, u64) -> *mut c_char;
    union_type_member_count: fn(OpaquePtr) -> u64;
    array_type_array_size: fn(OpaquePtr) -> u64;
    decimal_scale: fn(OpaquePtr) -> u8;
    decimal_internal_type: fn(OpaquePtr) -> u32;
    enum_internal_type: fn(OpaquePtr) -> u32;
    enum_dictionary_value: fn(OpaquePtr, u64) -> *mut c_char;
    array_vector_get_child: fn(OpaquePtr) -> OpaquePtr;
}

/// Copies a string that the library owns.
fn copy_c_string(from: *const c_char) -> Option<String> {
    // SAFETY: the library's strings end in a zero byte, and live as long as the object that the caller still holds.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

fn to_c_string(from: &str) -> Result<CString, DuckDbError> {
    Ok(CString::new(from)?)
}

/// DuckDB's shared library, loaded.
#[derive(Clone)]
pub struct Library(Arc<Api>);

impl Library {
    /// Loads a shared library. Loading runs its initialisers, so pass only a library that the operator provided.
    ///
    /// # Errors
    /// The library cannot be loaded, is not DuckDB, or is too old.
    pub fn load(path: &Path) -> Result<Self, DuckDbError> {
        // SAFETY: the operator named the file, or it is in a directory that only administrators and this user can
        // write; DuckDB's initialisers have no requirements on the caller.
        let library = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(DuckDbError::Load)?;
        Ok(Self(Arc::new(Api::load_symbols(library)?)))
    }

    /// Returns the version, such as `v1.5.6`.
    pub fn version(&self) -> String {
        // SAFETY: the function takes no argument; the string is static.
        copy_c_string(unsafe { (self.0.library_version)() }).unwrap_or_default()
    }

    /// Opens a database file, or an in-memory database, with settings applied in this order.
    ///
    /// # Errors
    /// DuckDB rejects the file or a setting.
    pub fn open(&self, path: Option<&Path>, settings: &[(&str, &str)]) -> Result<Database, DuckDbError> {
        let config = DatabaseConfig::new(&self.0, settings)?;
        let path = path.map(|path| to_c_string(&path.to_string_lossy())).transpose()?;
        let path = path.as_ref().map_or(null(), |path| path.as_ptr());
        let (mut raw, mut error) = (null_mut(), null_mut());
        // SAFETY: path and config live through the call; both out pointers refer to local variables.
        let state = unsafe { (self.0.open_ext)(path, &raw mut raw, config.raw, &raw mut error) };
        if state == SUCCESS {
            return Ok(Database(Arc::new(OpenDatabase { api: Arc::clone(&self.0), raw })));
        }
        let message = copy_c_string(error).unwrap_or_else(|| "it gives no reason".to_owned());
        // SAFETY: the caller owns the string and frees it once; a null pointer is ignored.
        unsafe { (self.0.free)(error.cast()) };
        Err(DuckDbError::Reported(message))
    }
}

struct DatabaseConfig<'a> {
    api: &'a Api,
    raw: OpaquePtr,
}

impl<'a> DatabaseConfig<'a> {
    fn new(api: &'a Api, settings: &[(&str, &str)]) -> Result<Self, DuckDbError> {
        let mut raw = null_mut();
        // SAFETY: the out pointer refers to a local variable.
        if unsafe { (api.create_config)(&raw mut raw) } != SUCCESS {
            return Err(DuckDbError::NoConfiguration);
        }
        let config = Self { api, raw };
        for (name, value) in settings {
            let (c_name, c_value) = (to_c_string(name)?, to_c_string(value)?);
            // SAFETY: the config was made above, and both strings live through the call.
            if unsafe { (api.set_config)(raw, c_name.as_ptr(), c_value.as_ptr()) } != SUCCESS {
                return Err(DuckDbError::Setting { name: (*name).to_owned(), value: (*value).to_owned() });
            }
        }
        Ok(config)
    }
}

impl Drop for DatabaseConfig<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.api.destroy_config)(&raw mut self.raw) };
    }
}

struct OpenDatabase {
    api: Arc<Api>,
    raw: OpaquePtr,
}

// SAFETY: DuckDB guards a database with its own locks; any thread may open connections to it and close it.
unsafe impl Send for OpenDatabase {}
// SAFETY: DuckDB guards a database with its own locks, as above.
unsafe impl Sync for OpenDatabase {}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; connections hold a reference to this value, so none of them is open any
        // more.
        unsafe { (self.api.close)(&raw mut self.raw) };
    }
}

/// An open database.
pub struct Database(Arc<OpenDatabase>);

impl Database {
    /// Opens a connection to the database.
    ///
    /// # Errors
    /// DuckDB refuses the connection.
    pub fn connect(&self) -> Result<Connection, DuckDbError> {
        let mut raw = null_mut();
        // SAFETY: the database is open, and the out pointer refers to a local variable.
        if unsafe { (self.0.api.connect)(self.0.raw, &raw mut raw) } != SUCCESS {
            return Err(DuckDbError::NoConnection);
        }
        Ok(Connection(Arc::new(OpenConnection { database: Arc::clone(&self.0), raw })))
    }
}

struct OpenConnection {
    database: Arc<OpenDatabase>,
    raw: OpaquePtr,
}

// SAFETY: DuckDB guards a connection with its own lock, and `duckdb_interrupt` is designed for calls from other
// threads.
unsafe impl Send for OpenConnection {}
// SAFETY: DuckDB guards a connection with its own lock, as above.
unsafe impl Sync for OpenConnection {}

impl OpenConnection {
    fn api(&self) -> &Api {
        &self.database.api
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        // SAFETY: connected once, disconnected once.
        unsafe { (self.api().disconnect)(&raw mut self.raw) };
    }
}

/// A connection to a database.
pub struct Connection(Arc<OpenConnection>);

/// Interrupts the work of a connection from another thread.
#[derive(Clone)]
pub struct Interrupter(Arc<OpenConnection>);

impl Interrupter {
    /// Interrupts the current work of the connection; does nothing if it is idle.
    pub fn interrupt(&self) {
        // SAFETY: the connection stays open as long as this value holds it.
        unsafe { (self.0.api().interrupt)(self.0.raw) };
    }
}

impl Connection {
    /// Returns a handle that interrupts the connection's work.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(Arc::clone(&self.0))
    }

    /// Splits a text into statements.
    ///
    /// # Errors
    /// DuckDB's parser rejects the text.
    pub fn extract(&self, sql: &str) -> Result<ExtractedStatements, DuckDbError> {
        let sql = to_c_string(sql)?;
        let mut raw = null_mut();
        let api = self.0.api();
        // SAFETY: the connection is open, the text lives through the call, and the out pointer refers to a local
        // variable.
        let count = unsafe { (api.extract_statements)(self.0.raw, sql.as_ptr(), &raw mut raw) };
        let extracted = ExtractedStatements { connection: Arc::clone(&self.0), raw, count };
        if count == 0 {
            // SAFETY: the object was made above; `text` copies the error, and handles a null pointer.
            let error = copy_c_string(unsafe { (api.extract_statements_error)(raw) });
            if let Some(error) = error.filter(|error| !error.is_empty()) {
                return Err(DuckDbError::Reported(error));
            }
        }
        Ok(extracted)
    }
}

/// Statements that were extracted from a text.
pub struct ExtractedStatements {
    connection: Arc<OpenConnection>,
    raw: OpaquePtr,
    count: u64,
}

impl ExtractedStatements {
    /// Returns the number of statements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Prepares one of the statements; the first is 0.
    ///
    /// # Errors
    /// DuckDB rejects the statement.
    pub fn prepare(&self, index: u64) -> Result<PreparedStatement, DuckDbError> {
        if index >= self.count {
            return Err(DuckDbError::NoStatement(index));
        }
        let api = self.connection.api();
        let mut raw = null_mut();
        // SAFETY: connection and statements are alive, the index is in range, and the out pointer refers to a local
        // variable.
        let state = unsafe { (api.prepare_extracted_statement)(self.connection.raw, self.raw, index, &raw mut raw) };
        let prepared = PreparedStatement { connection: Arc::clone(&self.connection), raw };
        if state == SUCCESS {
            return Ok(prepared);
        }
        // SAFETY: the object was made above, and contains the error message.
        let message = copy_c_string(unsafe { (api.prepare_error)(raw) }).unwrap_or_default();
        Err(DuckDbError::Reported(message))
    }
}

impl Drop for ExtractedStatements {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.connection.api().destroy_extracted)(&raw mut self.raw) };
    }
}

/// A prepared statement.
pub struct PreparedStatement {
    connection: Arc<OpenConnection>,
    raw: OpaquePtr,
}

impl PreparedStatement {
    /// Returns the type of the statement.
    pub fn statement_type(&self) -> StatementType {
        // SAFETY: the statement is alive.
        StatementType::from_number(unsafe { (self.connection.api().prepared_statement_type)(self.raw) })
    }

    /// Returns the number of parameters.
    pub fn parameter_count(&self) -> u64 {
        // SAFETY: the statement is alive.
        unsafe { (self.connection.api().nparams)(self.raw) }
    }

    /// Returns the names of the result columns, and the names of their types if the API provides them.
    pub fn columns(&self) -> Vec<(String, Option<&'static str>)> {
        let api = self.connection.api();
        // SAFETY: the statement is alive.
        let count = unsafe { (api.prepared_statement_column_count)(self.raw) };
        let one = |index| {
            // SAFETY: the statement is alive and has this column.
            let (name, kind) = unsafe {
                (
                    (api.prepared_statement_column_name)(self.raw, index),
                    (api.prepared_statement_column_type)(self.raw, index),
                )
            };
            let owned = copy_c_string(name).unwrap_or_default();
            // SAFETY: the library allocated the name for the caller; it is freed once, and a null pointer is ignored.
            unsafe { (api.free)(name.cast_mut().cast()) };
            (owned, type_name(kind))
        };
        (0..count).map(one).collect()
    }

    /// Binds a text to a parameter; the first is 1.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn bind(&self, index: u64, value: &str) -> Result<(), DuckDbError> {
        let api = self.connection.api();
        // SAFETY: the statement is alive; the library reads exactly the given number of bytes of the text, which
        // lives through the call.
        let state = unsafe { (api.bind_varchar_length)(self.raw, index, value.as_ptr().cast(), value.len() as u64) };
        if state == SUCCESS { Ok(()) } else { Err(DuckDbError::NoParameter(index)) }
    }

    /// Binds NULL to a parameter.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn bind_null(&self, index: u64) -> Result<(), DuckDbError> {
        // SAFETY: the statement is alive.
        let state = unsafe { (self.connection.api().bind_null)(self.raw, index) };
        if state == SUCCESS { Ok(()) } else { Err(DuckDbError::NoParameter(index)) }
    }

    /// Runs the statement; the rows of its result are fetched in chunks on demand.
    ///
    /// # Errors
    /// DuckDB fails to run the statement.
    pub fn run(&self) -> Result<Rows, DuckDbError> {
        let api = self.connection.api();
        let mut raw = null_mut();
        // SAFETY: the statement is alive, and the out pointer refers to a local variable.
        let state = unsafe { (api.pending_prepared_streaming)(self.raw, &raw mut raw) };
        let mut pending = PendingResult { api, raw };
        if state != SUCCESS {
            return Err(DuckDbError::Reported(pending.error()));
        }
        let mut rows = Rows { connection: Arc::clone(&self.connection), raw: NO_RESULT };
        // SAFETY: the pending result is alive, and the out pointer refers to a field of a local variable.
        if unsafe { (api.execute_pending)(pending.raw, &raw mut rows.raw) } == SUCCESS {
            return Ok(rows);
        }
        Err(DuckDbError::Reported(rows.error().unwrap_or_else(|| pending.error())))
    }
}

impl Drop for PreparedStatement {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.connection.api().destroy_prepare)(&raw mut self.raw) };
    }
}

struct PendingResult<'a> {
    api: &'a Api,
    raw: OpaquePtr,
}

impl PendingResult<'_> {
    fn error(&mut self) -> String {
        // SAFETY: the pending result is alive, and contains its error message.
        copy_c_string(unsafe { (self.api.pending_error)(self.raw) }).unwrap_or_default()
    }
}

impl Drop for PendingResult<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.api.destroy_pending)(&raw mut self.raw) };
    }
}

/// The result of a statement.
pub struct Rows {
    connection: Arc<OpenConnection>,
    raw: RawResult,
}

impl Rows {
    /// Returns whether the result is a single number of changed rows.
    pub fn is_changed_row_count(&self) -> bool {
        const CHANGED_ROWS: u32 = 1;
        // SAFETY: the result is alive.
        unsafe { (self.connection.api().result_return_type)(self.raw) == CHANGED_ROWS }
    }

    /// Returns whether the result consists of rows of the statement.
    pub fn is_query_result(&self) -> bool {
        const QUERY_RESULT: u32 = 3;
        // SAFETY: the result is alive.
        unsafe { (self.connection.api().result_return_type)(self.raw) == QUERY_RESULT }
    }

    /// Returns the next rows; `None` if there are no more.
    ///
    /// # Errors
    /// DuckDB fails to produce the next rows, which is possible after any number of rows.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, DuckDbError> {
        // SAFETY: the result is alive.
        let raw = unsafe { (self.connection.api().fetch_chunk)(self.raw) };
        if !raw.is_null() {
            return Ok(Some(Chunk::from_raw(&self.connection, raw)));
        }
        self.error().map_or(Ok(None), |message| Err(DuckDbError::Reported(message)))
    }

    fn error(&mut self) -> Option<String> {
        // SAFETY: the result is alive, or was never filled and is all zeros, which the library treats as no result.
        copy_c_string(unsafe { (self.connection.api().result_error)(&raw mut self.raw) })
            .filter(|error| !error.is_empty())
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the library ignores a result of zeros.
        unsafe { (self.connection.api().destroy_result)(&raw mut self.raw) };
    }
}
