//! The demo's MCP servers: a file store, a mailer and a vault, inside of this process, and a calendar that is down.
//!
//! They are what any server is: a peer at the other end of a stream, with definitions and answers of its own. The file store
//! works on real files, in a folder made for the demo, through a directory capability: a path that leads out of the folder
//! is an error of the tool.

use std::path::PathBuf;
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

/// How many bytes may wait in a stream between us and a demo server.
const STREAM: usize = 64 * 1024;
/// What the file store begins with.
const FILES: [(&str, &str); 2] = [("notes.txt", "Water the plants on Friday."), ("plan.txt", "1. Ship it. 2. Rest.")];

/// What a tool does: name and arguments in, text or complaint out.
type Work = dyn Fn(&str, &Map<String, Value>) -> Result<String, String> + Send + Sync;

/// One server. Clones are one server: whoever changes its tools tells every connection's peer.
#[derive(Clone)]
pub(crate) struct DemoServer(Arc<Inner>);

struct Inner {
    name: &'static str,
    tools: Mutex<Vec<Tool>>,
    work: Box<Work>,
    peer: Mutex<Option<Peer<RoleServer>>>,
}

impl DemoServer {
    fn new(
        name: &'static str,
        tools: Vec<Tool>,
        work: impl Fn(&str, &Map<String, Value>) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let inner = Inner { name, tools: Mutex::new(tools), work: Box::new(work), peer: Mutex::new(None) };
        Self(Arc::new(inner))
    }

    /// Starts the server on one end of a stream, and returns the other end.
    pub(crate) fn open(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(STREAM);
        let server = self.clone();
        tokio::spawn(async move {
            if let Ok(running) = server.serve(theirs).await {
                // Ends with the stream; there is nobody to tell why.
                let _ = running.waiting().await;
            }
        });
        ours
    }

    /// Gives a tool another description, and tells the client that the list has changed.
    pub(crate) async fn redefine(&self, tool: &str, description: &'static str) {
        for known in self.0.tools.lock().iter_mut().filter(|known| known.name == tool) {
            known.description = Some(description.into());
        }
        let peer = self.0.peer.lock().clone();
        if let Some(peer) = peer {
            // A client that has gone needs no news.
            let _ = peer.notify_tool_list_changed().await;
        }
    }
}

impl ServerHandler for DemoServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        let us = Implementation::new(self.0.name, env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(us)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        *self.0.peer.lock() = Some(context.peer);
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.tools.lock().clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.0.tools.lock().iter().any(|tool| tool.name == request.name) {
            return Err(ErrorData::new(ErrorCode::INVALID_PARAMS, "there is no such tool", None));
        }
        let result = match (self.0.work)(&request.name, &request.arguments.unwrap_or_default()) {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(complaint) => CallToolResult::error(vec![ContentBlock::text(complaint)]),
        };
        Ok(result.into())
    }
}

/// A stream to a server that is down: it ends before the handshake.
pub(crate) fn down() -> DuplexStream {
    tokio::io::duplex(STREAM).0
}

/// The folder of the file store; it goes away with this value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder that only this user may enter, with the first files in it.
    pub(crate) fn make() -> std::io::Result<(Self, Dir)> {
        use std::os::unix::fs::DirBuilderExt as _;

        let path = std::env::temp_dir().join(format!("portcullis-demo-{}", uuid::Uuid::now_v7().simple()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self(path);
        let dir = Dir::open_ambient_dir(&folder.0, ambient_authority())?;
        for (name, text) in FILES {
            dir.write(name, text)?;
        }
        Ok((folder, dir))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system clears its temporary folder in time.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file store over `dir`.
pub(crate) fn files(dir: Dir) -> DemoServer {
    let path = || schema(&["path"]);
    let tools = vec![
        tool("list_files", "List the files", schema(&[])).with_annotations(ToolAnnotations::new().read_only(true)),
        // Says nothing about itself, as many real tools do.
        tool("read_file", "Read a file", path()),
        tool("write_file", "Write a file", schema(&["path", "text"])),
        tool("delete_file", "Delete a file", path()).with_annotations(ToolAnnotations::new().destructive(true)),
    ];
    DemoServer::new("files", tools, move |tool, arguments| {
        let path = || text(arguments, "path");
        let failed = |error: std::io::Error| error.to_string();
        match tool {
            "list_files" => {
                let entries = dir.entries().map_err(failed)?.filter_map(Result::ok);
                let mut names: Vec<String> =
                    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
                names.sort();
                Ok(names.join(", "))
            }
            "read_file" => dir.read_to_string(path()?).map_err(failed),
            "write_file" => {
                let (path, text) = (path()?, text(arguments, "text")?);
                dir.write(path, text).map_err(failed)?;
                Ok(format!("wrote {} bytes to {path}", text.len()))
            }
            _ => {
                dir.remove_file(path()?).map_err(failed)?;
                Ok("deleted".to_owned())
            }
        }
    })
}

/// A mailer that delivers nowhere.
pub(crate) fn mail() -> DemoServer {
    // Destroys nothing, but reaches out.
    let annotations = ToolAnnotations::new().destructive(false).open_world(true);
    let tools = vec![tool("send_mail", "Send a mail", schema(&["to", "subject"])).with_annotations(annotations)];
    DemoServer::new("mail", tools, |_, arguments| Ok(format!("sent to {}", text(arguments, "to")?)))
}

/// A vault with a secret in it.
pub(crate) fn vault() -> DemoServer {
    let tools = vec![tool("read_secret", "Read a secret", schema(&["name"]))];
    DemoServer::new("vault", tools, |_, arguments| {
        let name = text(arguments, "name")?;
        if name == "wifi" { Ok("correct horse battery staple".to_owned()) } else { Err(format!("no secret `{name}`")) }
    })
}

fn tool(name: &'static str, description: &'static str, schema: Map<String, Value>) -> Tool {
    Tool::new(name, description, schema)
}

/// The schema of an object whose properties are texts, all required.
fn schema(properties: &[&str]) -> Map<String, Value> {
    let properties_of: Map<String, Value> =
        properties.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties_of));
    schema.insert("required".to_owned(), json!(properties));
    schema
}

fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    arguments.get(name).and_then(Value::as_str).ok_or_else(|| format!("`{name}` must be a text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(server: &DemoServer, tool: &str, arguments: Value) -> Result<String, String> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        (server.0.work)(tool, &arguments)
    }

    #[test]
    fn the_file_store_works_on_its_folder_and_no_other() {
        let (folder, dir) = Folder::make().unwrap();
        let files = files(dir);
        let list = || work(&files, "list_files", json!({})).unwrap();
        assert_eq!(list(), "notes.txt, plan.txt");
        work(&files, "write_file", json!({ "path": "new.txt", "text": "hi" })).unwrap();
        assert_eq!(work(&files, "read_file", json!({ "path": "new.txt" })).unwrap(), "hi");
        work(&files, "delete_file", json!({ "path": "new.txt" })).unwrap();
        assert_eq!(list(), "notes.txt, plan.txt");
        for outside in ["../x", "/etc/passwd"] {
            assert!(work(&files, "read_file", json!({ "path": outside })).is_err(), "{outside} was read");
            assert!(work(&files, "write_file", json!({ "path": outside, "text": "" })).is_err(), "{outside}");
        }
        let path = folder.0.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
