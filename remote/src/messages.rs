//! The messages of the Remote Execution API v2, ByteStream and long-running operations that Proctor uses, with the field
//! numbers of the API. Fields that Proctor neither writes nor reads are left out; a reader skips unknown fields.

#![expect(missing_docs, reason = "the API's own documentation describes the fields")]

use std::collections::HashMap;

use prost::Message;

/// The number of SHA256 in the API's list of digest functions.
pub const SHA256: i32 = 1;
/// The number of uncompressed content in the API's list of compressors.
pub const IDENTITY: i32 = 0;
/// The number of zstd in the API's list of compressors.
pub const ZSTD: i32 = 1;

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Digest {
    #[prost(string, tag = "1")]
    pub hash: String,
    #[prost(int64, tag = "2")]
    pub size_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// google.rpc.Status.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServerCapabilities {
    #[prost(message, optional, tag = "1")]
    pub cache_capabilities: Option<CacheCapabilities>,
    #[prost(message, optional, tag = "2")]
    pub execution_capabilities: Option<ExecutionCapabilities>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CacheCapabilities {
    #[prost(int32, repeated, tag = "1")]
    pub digest_functions: Vec<i32>,
    #[prost(message, optional, tag = "2")]
    pub action_cache_update_capabilities: Option<ActionCacheUpdateCapabilities>,
    #[prost(int64, tag = "4")]
    pub max_batch_total_size_bytes: i64,
    #[prost(int32, repeated, tag = "6")]
    pub supported_compressors: Vec<i32>,
    #[prost(int32, repeated, tag = "7")]
    pub supported_batch_update_compressors: Vec<i32>,
    #[prost(int64, tag = "8")]
    pub max_cas_blob_size_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ActionCacheUpdateCapabilities {
    #[prost(bool, tag = "1")]
    pub update_enabled: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecutionCapabilities {
    #[prost(int32, tag = "1")]
    pub digest_function: i32,
    #[prost(bool, tag = "2")]
    pub exec_enabled: bool,
    #[prost(int32, repeated, tag = "5")]
    pub digest_functions: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FindMissingBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub blob_digests: Vec<Digest>,
    #[prost(int32, tag = "3")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct FindMissingBlobsResponse {
    #[prost(message, repeated, tag = "2")]
    pub missing_blob_digests: Vec<Digest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BatchUpdateBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub requests: Vec<BlobUpdate>,
    #[prost(int32, tag = "5")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct BlobUpdate {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub compressor: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct BatchUpdateBlobsResponse {
    #[prost(message, repeated, tag = "1")]
    pub responses: Vec<BlobUpdated>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BlobUpdated {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<RpcStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BatchReadBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub digests: Vec<Digest>,
    #[prost(int32, repeated, tag = "3")]
    pub acceptable_compressors: Vec<i32>,
    #[prost(int32, tag = "4")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct BatchReadBlobsResponse {
    #[prost(message, repeated, tag = "1")]
    pub responses: Vec<BlobRead>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BlobRead {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub status: Option<RpcStatus>,
    #[prost(int32, tag = "4")]
    pub compressor: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(int64, tag = "2")]
    pub read_offset: i64,
    #[prost(int64, tag = "3")]
    pub read_limit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadResponse {
    #[prost(bytes = "vec", tag = "10")]
    pub data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct WriteRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(int64, tag = "2")]
    pub write_offset: i64,
    #[prost(bool, tag = "3")]
    pub finish_write: bool,
    #[prost(bytes = "bytes", tag = "10")]
    pub data: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct WriteResponse {
    #[prost(int64, tag = "1")]
    pub committed_size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct QueryWriteStatusRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct QueryWriteStatusResponse {
    #[prost(int64, tag = "1")]
    pub committed_size: i64,
    #[prost(bool, tag = "2")]
    pub complete: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetActionResultRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub action_digest: Option<Digest>,
    #[prost(bool, tag = "3")]
    pub inline_stdout: bool,
    #[prost(bool, tag = "4")]
    pub inline_stderr: bool,
    #[prost(string, repeated, tag = "5")]
    pub inline_output_files: Vec<String>,
    #[prost(int32, tag = "6")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateActionResultRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub action_digest: Option<Digest>,
    #[prost(message, optional, tag = "3")]
    pub action_result: Option<ActionResult>,
    #[prost(int32, tag = "5")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ActionResult {
    #[prost(message, repeated, tag = "2")]
    pub output_files: Vec<OutputFile>,
    #[prost(int32, tag = "4")]
    pub exit_code: i32,
    #[prost(bytes = "vec", tag = "5")]
    pub stdout_raw: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub stdout_digest: Option<Digest>,
    #[prost(bytes = "vec", tag = "7")]
    pub stderr_raw: Vec<u8>,
    #[prost(message, optional, tag = "8")]
    pub stderr_digest: Option<Digest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(message, optional, tag = "2")]
    pub digest: Option<Digest>,
    #[prost(bool, tag = "4")]
    pub is_executable: bool,
    #[prost(bytes = "vec", tag = "5")]
    pub contents: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Action {
    #[prost(message, optional, tag = "1")]
    pub command_digest: Option<Digest>,
    #[prost(message, optional, tag = "2")]
    pub input_root_digest: Option<Digest>,
    #[prost(message, optional, tag = "6")]
    pub timeout: Option<Duration>,
    #[prost(bool, tag = "7")]
    pub do_not_cache: bool,
    #[prost(bytes = "vec", tag = "9")]
    pub salt: Vec<u8>,
    #[prost(message, optional, tag = "10")]
    pub platform: Option<Platform>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Command {
    #[prost(string, repeated, tag = "1")]
    pub arguments: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    pub environment_variables: Vec<NamedValue>,
    #[prost(string, repeated, tag = "3")]
    pub output_files: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub platform: Option<Platform>,
    #[prost(string, tag = "6")]
    pub working_directory: String,
    #[prost(string, repeated, tag = "7")]
    pub output_paths: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Platform {
    #[prost(message, repeated, tag = "1")]
    pub properties: Vec<NamedValue>,
}

/// A variable of the environment, or a property of a platform: both have the same form.
#[derive(Clone, PartialEq, Message)]
pub struct NamedValue {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Directory {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<FileNode>,
    #[prost(message, repeated, tag = "2")]
    pub directories: Vec<DirectoryNode>,
    #[prost(message, repeated, tag = "3")]
    pub symlinks: Vec<SymlinkNode>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FileNode {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub digest: Option<Digest>,
    #[prost(bool, tag = "4")]
    pub is_executable: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct DirectoryNode {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub digest: Option<Digest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SymlinkNode {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub target: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecuteRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(bool, tag = "3")]
    pub skip_cache_lookup: bool,
    #[prost(message, optional, tag = "6")]
    pub action_digest: Option<Digest>,
    #[prost(int32, tag = "9")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecuteResponse {
    #[prost(message, optional, tag = "1")]
    pub result: Option<ActionResult>,
    #[prost(bool, tag = "2")]
    pub cached_result: bool,
    #[prost(message, optional, tag = "3")]
    pub status: Option<RpcStatus>,
    #[prost(map = "string, message", tag = "4")]
    pub server_logs: HashMap<String, LogFile>,
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LogFile {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(bool, tag = "2")]
    pub human_readable: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecuteOperationMetadata {
    #[prost(int32, tag = "1")]
    pub stage: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct WaitExecutionRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CancelOperationRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// google.protobuf.Empty.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// google.longrunning.Operation. It has at most one of `error` and `response`.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<Any>,
    #[prost(bool, tag = "3")]
    pub done: bool,
    #[prost(message, optional, tag = "4")]
    pub error: Option<RpcStatus>,
    #[prost(message, optional, tag = "5")]
    pub response: Option<Any>,
}
