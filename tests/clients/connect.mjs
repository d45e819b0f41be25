// The TypeScript SDK, 1.x and 2.x, behind one small surface: what the tours need and no more.
import * as one from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StreamableHTTPClientTransport as TransportOne } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import * as schemas from '@modelcontextprotocol/sdk/types.js';
import * as two from '@modelcontextprotocol/client';

const CAPABILITIES = {
  sampling: {},
  elicitation: { form: {}, url: {} },
  roots: { listChanged: true },
};

const REQUESTS = {
  'sampling/createMessage': schemas.CreateMessageRequestSchema,
  'elicitation/create': schemas.ElicitRequestSchema,
  'roots/list': schemas.ListRootsRequestSchema,
};
const NOTIFICATIONS = {
  'notifications/message': schemas.LoggingMessageNotificationSchema,
  'notifications/resources/updated': schemas.ResourceUpdatedNotificationSchema,
  'notifications/resources/list_changed': schemas.ResourceListChangedNotificationSchema,
  'notifications/tools/list_changed': schemas.ToolListChangedNotificationSchema,
};

/** How SDK 2.x finds its revision. */
const NEGOTIATION = { auto: 'auto', legacy: 'legacy', modern: { pin: '2026-07-28' } };

/**
 * A connected client of SDK generation `sdk` (1 or 2) whose questions go to `answer[method](params)`
 * and whose notifications are collected as `seen: [{ method, params }]`.
 * `era` is auto, legacy or modern; SDK 1.x knows only the older one. The URL says the transport: `/sse…` is
 * HTTP+SSE, `ws:` a WebSocket, both of SDK 1.x.
 */
export async function connect(sdk, { url, token, authProvider, answer, capabilities = CAPABILITIES, era = 'auto' }) {
  const seen = [];
  const keep = ({ method, params }) => void seen.push({ method, params });
  const info = { name: `tour-typescript-${sdk}`, version: '1.0.0' };
  const client =
    sdk === 1
      ? new one.Client(info, { capabilities })
      : new two.Client(info, { capabilities, versionNegotiation: { mode: NEGOTIATION[era] } });
  for (const method of Object.keys(REQUESTS)) {
    if (!answer?.[method]) continue;
    client.setRequestHandler(sdk === 1 ? REQUESTS[method] : method, ({ params }) => answer[method](params));
  }
  for (const method of Object.keys(NOTIFICATIONS)) {
    client.setNotificationHandler(sdk === 1 ? NOTIFICATIONS[method] : method, keep);
  }
  const at = new URL(url);
  const One = at.pathname.startsWith('/sse') ? SSEClientTransport : TransportOne;
  const Transport = sdk === 1 ? One : two.StreamableHTTPClientTransport;
  const requestInit = token ? { headers: { Authorization: `Bearer ${token}` } } : undefined;
  const isSocket = at.protocol === 'ws:';
  const transport = isSocket ? new WebSocketClientTransport(at) : new Transport(at, { requestInit, authProvider });
  await client.connect(transport);
  const call = (name, args = {}, options = {}) => {
    const params = { name, arguments: args };
    return sdk === 1 ? client.callTool(params, undefined, options) : client.callTool(params, options);
  };
  const close = async () => {
    await transport.terminateSession?.();
    await client.close();
  };
  return { client, transport, seen, call, close };
}
