//! Tools that run as tasks of `io.modelcontextprotocol/tasks`, by the names that the official
//! conformance suite calls. Serves Streamable HTTP and prints its URL as the first line.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
    ContentBlock, CreateTaskResult, GetTaskParams, GetTaskResult, Implementation, InputRequest,
    InputRequests, InputRequiredResult, JsonObject, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

/// A tool: its name, whether it works without tasks, and its arguments.
const TOOLS: &[(&str, bool, &[(&str, &str)])] = &[
    ("greet", true, &[("name", "string")]),
    (
        "slow_compute",
        true,
        &[("seconds", "number"), ("label", "string")],
    ),
    ("failing_job", false, &[]),
    ("protocol_error_job", true, &[]),
    ("confirm_delete", false, &[("filename", "string")]),
    ("multi_input", false, &[]),
    ("test_tool_with_task", false, &[]),
];

#[derive(Clone)]
struct Fixture {
    tasks: TaskManager,
}

type Work = Result<CallToolResult, TaskExit>;

fn object(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}

fn said(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn form(message: &str, field: &str, kind: &str) -> InputRequest {
    serde_json::from_value(json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": message,
            "requestedSchema": {
                "type": "object",
                "properties": { field: { "type": kind } },
                "required": [field],
            },
        },
    }))
    .expect("an elicitation")
}

async fn ask(
    ctx: &TaskContext,
    key: &str,
    message: &str,
    field: &str,
    kind: &str,
) -> Result<Value, TaskExit> {
    let answer = ctx.request_input(key, form(message, field, kind)).await?;
    Ok(answer["content"][field].clone())
}

async fn compute(seconds: f64, label: String) -> CallToolResult {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    said(format!("slow_compute({label}) done after {seconds}s"))
}

impl Fixture {
    fn start<F, W>(&self, work: F) -> CallToolResponse
    where
        F: FnOnce(TaskContext) -> W + Send + 'static,
        W: Future<Output = Work> + Send + 'static,
    {
        let task = self
            .tasks
            .spawn(TaskOptions::default(), move |ctx| Box::pin(work(ctx)));
        CreateTaskResult::new(task).into()
    }

    async fn run(
        &self,
        request: CallToolRequestParams,
        tasks: bool,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = Value::Object(request.arguments.unwrap_or_default());
        let text = |name: &str, other: &str| args[name].as_str().unwrap_or(other).to_owned();
        Ok(match request.name.as_ref() {
            "greet" => said(format!("Hello, {}!", text("name", "friend"))).into(),
            "slow_compute" => {
                let seconds = args["seconds"].as_f64().unwrap_or(1.0);
                let label = text("label", "compute");
                if !tasks {
                    return Ok(compute(seconds, label).await.into());
                }
                self.start(move |ctx| async move {
                    tokio::select! {
                        () = ctx.cancelled() => Err(TaskExit::Cancelled),
                        done = compute(seconds, label) => Ok(done),
                    }
                })
            }
            "failing_job" => self.start(|_| async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(CallToolResult::error(vec![ContentBlock::text(
                    "failing_job failed, as it should",
                )]))
            }),
            "protocol_error_job" => {
                let failure =
                    || ErrorData::internal_error("protocol_error_job failed, as it should", None);
                if !tasks {
                    return Err(failure());
                }
                self.start(move |_| async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Err(TaskExit::Error(failure()))
                })
            }
            "confirm_delete" => {
                let file = text("filename", "file.txt");
                self.start(move |ctx| async move {
                    let yes = ask(
                        &ctx,
                        "confirm",
                        &format!("Delete {file}?"),
                        "confirm",
                        "boolean",
                    )
                    .await?;
                    Ok(said(format!("confirm_delete({file}): confirmed = {yes}")))
                })
            }
            "multi_input" => self.start(|ctx| async move {
                let (a, b) = tokio::join!(
                    ask(&ctx, "input-a", "Value A", "value", "string"),
                    ask(&ctx, "input-b", "Value B", "value", "string"),
                );
                Ok(said(format!("multi_input: a = {}, b = {}", a?, b?)))
            }),
            "test_tool_with_task" => {
                let answers = serde_json::to_value(&request.input_responses).unwrap_or_default();
                match answers["user_name"]["content"]["name"].as_str() {
                    None => {
                        let mut requests = InputRequests::new();
                        requests.insert(
                            "user_name".into(),
                            form("What is your name?", "name", "string"),
                        );
                        InputRequiredResult::from_input_requests(requests).into()
                    }
                    Some(name) => {
                        let name = name.to_owned();
                        self.start(move |_| async move {
                            tokio::time::sleep(Duration::from_millis(200)).await;
                            Ok(said(format!("Hello, {name}! (async)")))
                        })
                    }
                }
            }
            other => {
                return Err(ErrorData::invalid_params(
                    format!("unknown tool {other}"),
                    None,
                ));
            }
        })
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(
            ServerCapabilities::builder()
                .enable_tools()
                .enable_tasks()
                .build(),
        )
        .with_server_info(Implementation::new("tasks-fixture", "1.0.0"))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = TOOLS.iter().map(|(name, _, arguments)| {
            let properties: JsonObject = arguments
                .iter()
                .map(|(name, kind)| ((*name).to_owned(), json!({ "type": kind })))
                .collect();
            let schema = object(json!({ "type": "object", "properties": properties }));
            Tool::new(*name, "A fixture of the tasks extension", Arc::new(schema))
        });
        Ok(ListToolsResult {
            tools: tools.collect(),
            ..Default::default()
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tasks = cx
            .client_capabilities()
            .is_some_and(|declared| declared.supports_tasks());
        let needs_tasks = TOOLS
            .iter()
            .any(|(name, plain, _)| *name == request.name && !plain);
        if needs_tasks && !tasks {
            let required = ClientCapabilities::builder().enable_tasks().build();
            return Err(ErrorData::missing_required_client_capability(required));
        }
        self.run(request, tasks).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks
            .update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let fixture = Fixture {
        tasks: TaskManager::new(),
    };
    let service = StreamableHttpService::new(
        move || Ok(fixture.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await
}
