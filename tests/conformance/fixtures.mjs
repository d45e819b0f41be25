// The fixtures that the official conformance suite asks for by name, on the TypeScript SDK's
// low-level server so that schemas reach the wire exactly as written here.
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import {
  CallToolRequestSchema,
  CompleteRequestSchema,
  ErrorCode,
  GetPromptRequestSchema,
  ListPromptsRequestSchema,
  ListResourcesRequestSchema,
  ListResourceTemplatesRequestSchema,
  ListToolsRequestSchema,
  McpError,
  ReadResourceRequestSchema,
  SubscribeRequestSchema,
  UnsubscribeRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==';
// A RIFF header and no samples.
const WAV = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=';

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const text = (value) => ({ type: 'text', text: value });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
export const said = (...content) => ({ content });
const outcome = (answer) =>
  said(
    text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`),
  );
const titled = (word) => [1, 2, 3].map((n) => ({ const: `value${n}`, title: `${word} ${n}` }));
const options = ['option1', 'option2', 'option3'];
export const noArguments = { type: 'object', properties: {} };
const oneString = (name) => ({
  type: 'object',
  properties: { [name]: { type: 'string' } },
  required: [name],
});

const ask = (server, extra, message, properties, required) =>
  server.elicitInput(
    { message, requestedSchema: { type: 'object', properties, ...(required && { required }) } },
    { relatedRequestId: extra.requestId },
  );

/** name → [description, input schema, run(server, arguments, extra)] */
export const TOOLS = {
  test_simple_text: ['Returns one text', noArguments, () => said(text('This is a simple text response for testing.'))],
  test_image_content: ['Returns an image', noArguments, () => said(image)],
  test_audio_content: ['Returns a sound', noArguments, () => said({ type: 'audio', data: WAV, mimeType: 'audio/wav' })],
  test_embedded_resource: [
    'Returns an embedded resource',
    noArguments,
    () =>
      said({
        type: 'resource',
        resource: {
          uri: 'test://embedded-resource',
          mimeType: 'text/plain',
          text: 'This is an embedded resource content.',
        },
      }),
  ],
  test_multiple_content_types: [
    'Returns text, image and resource',
    noArguments,
    () =>
      said(text('Multiple content types test:'), image, {
        type: 'resource',
        resource: {
          uri: 'test://mixed-content-resource',
          mimeType: 'application/json',
          text: JSON.stringify({ test: 'data', value: 123 }),
        },
      }),
  ],
  test_tool_with_logging: [
    'Logs three times',
    noArguments,
    async (server, _, extra) => {
      for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
        await extra.sendNotification({
          method: 'notifications/message',
          params: { level: 'info', logger: 'conformance', data },
        });
        await pause(50);
      }
      return said(text('Logged three messages.'));
    },
  ],
  test_tool_with_progress: [
    'Reports progress three times',
    noArguments,
    async (server, _, extra) => {
      const progressToken = extra._meta?.progressToken;
      for (const progress of [0, 50, 100]) {
        if (progressToken !== undefined) {
          await extra.sendNotification({
            method: 'notifications/progress',
            params: { progressToken, progress, total: 100, message: `Step ${progress} of 100` },
          });
        }
        await pause(50);
      }
      return said(text('Progressed to the end.'));
    },
  ],
  test_error_handling: [
    'Always fails',
    noArguments,
    () => ({ isError: true, ...said(text('This tool intentionally returns an error for testing')) }),
  ],
  test_sampling: [
    'Asks the client for a completion',
    oneString('prompt'),
    async (server, { prompt }, extra) => {
      const answer = await server.createMessage(
        { messages: [{ role: 'user', content: text(prompt) }], maxTokens: 100 },
        { relatedRequestId: extra.requestId },
      );
      return said(text(`LLM response: ${answer.content.text}`));
    },
  ],
  test_elicitation: [
    'Asks the user two questions',
    oneString('message'),
    async (server, { message }, extra) => {
      const answer = await ask(
        server,
        extra,
        message,
        {
          username: { type: 'string', description: "User's response" },
          email: { type: 'string', description: "User's email address" },
        },
        ['username', 'email'],
      );
      return said(text(`User response: ${JSON.stringify(answer)}`));
    },
  ],
  test_elicitation_sep1034_defaults: [
    'Asks with a default for every primitive type',
    noArguments,
    async (server, _, extra) =>
      outcome(
        await ask(server, extra, 'Check these values', {
          name: { type: 'string', description: 'Name', default: 'John Doe' },
          age: { type: 'integer', description: 'Age', default: 30 },
          score: { type: 'number', description: 'Score', default: 95.5 },
          status: {
            type: 'string',
            description: 'Status',
            enum: ['active', 'inactive', 'pending'],
            default: 'active',
          },
          verified: { type: 'boolean', description: 'Verified', default: true },
        }),
      ),
  ],
  test_elicitation_sep1330_enums: [
    'Asks with every enum shape',
    noArguments,
    async (server, _, extra) =>
      outcome(
        await ask(server, extra, 'Choose', {
          untitledSingle: { type: 'string', enum: options },
          titledSingle: { type: 'string', oneOf: titled('Option') },
          legacyEnum: {
            type: 'string',
            enum: ['opt1', 'opt2', 'opt3'],
            enumNames: ['Option One', 'Option Two', 'Option Three'],
          },
          untitledMulti: { type: 'array', items: { type: 'string', enum: options } },
          titledMulti: { type: 'array', items: { anyOf: titled('Choice') } },
        }),
      ),
  ],
  test_reconnection: [
    'Closes its stream in the middle, then answers',
    noArguments,
    async (server, _, extra) => {
      await pause(100);
      extra.closeSSEStream?.();
      await pause(600);
      return said(text('Answered after the stream was closed.'));
    },
  ],
  json_schema_2020_12_tool: [
    'Has a schema with the 2020-12 vocabulary',
    {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      $defs: {
        address: {
          $anchor: 'addressDef',
          type: 'object',
          properties: { street: { type: 'string' }, city: { type: 'string' } },
        },
      },
      properties: {
        name: { type: 'string' },
        address: { $ref: '#/$defs/address' },
        contactMethod: { type: 'string', enum: ['phone', 'email'] },
        phone: { type: 'string' },
        email: { type: 'string' },
      },
      allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
      if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
      then: { required: ['phone'] },
      else: { required: ['email'] },
      additionalProperties: false,
    },
    (server, args) => said(text(JSON.stringify(args))),
  ],
};

export const RESOURCES = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: PNG },
  'test://watched-resource': { mimeType: 'text/plain', text: 'Watched.' },
};
export const TEMPLATE = /^test:\/\/template\/([^/]+)\/data$/;

export const user = (content) => ({ role: 'user', content });
/** name → [description, argument names, messages(arguments)] */
export const PROMPTS = {
  test_simple_prompt: ['No arguments', [], () => [user(text('This is a simple prompt for testing.'))]],
  test_prompt_with_arguments: [
    'Two arguments',
    ['arg1', 'arg2'],
    ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  ],
  test_prompt_with_embedded_resource: [
    'Embeds a resource',
    ['resourceUri'],
    ({ resourceUri }) => [
      user({
        type: 'resource',
        resource: {
          uri: resourceUri,
          mimeType: 'text/plain',
          text: 'Embedded resource content for testing.',
        },
      }),
      user(text('Please process the embedded resource above.')),
    ],
  ],
  test_prompt_with_image: [
    'Embeds an image',
    [],
    () => [user(image), user(text('Please analyze the image above.'))],
  ],
};

const known = (table, key, what) => {
  if (!Object.hasOwn(table, key)) throw new McpError(ErrorCode.InvalidParams, `Unknown ${what}: ${key}`);
  return table[key];
};

/** What a server with all of this declares. */
export const CAPABILITIES = {
  tools: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  prompts: { listChanged: true },
  logging: {},
  completions: {},
};

/** One server for one session. */
export function fixtureServer() {
  const server = new Server(
    { name: 'conformance-fixture', version: '1.0.0' },
    { capabilities: CAPABILITIES },
  );
  const on = (schema, handler) => server.setRequestHandler(schema, handler);

  on(ListToolsRequestSchema, () => ({
    tools: Object.entries(TOOLS).map(([name, [description, inputSchema]]) => ({ name, description, inputSchema })),
  }));
  on(CallToolRequestSchema, ({ params }, extra) =>
    known(TOOLS, params.name, 'tool')[2](server, params.arguments ?? {}, extra),
  );

  on(ListResourcesRequestSchema, () => ({
    resources: Object.entries(RESOURCES).map(([uri, { mimeType }]) => ({
      uri,
      name: uri.slice('test://'.length),
      description: `Fixture ${uri}`,
      mimeType,
    })),
  }));
  on(ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: [
      {
        uriTemplate: 'test://template/{id}/data',
        name: 'template',
        description: 'Data by id',
        mimeType: 'application/json',
      },
    ],
  }));
  on(ReadResourceRequestSchema, ({ params: { uri } }) => {
    const id = TEMPLATE.exec(uri)?.[1];
    if (id !== undefined) {
      const data = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
      return { contents: [{ uri, mimeType: 'application/json', text: data }] };
    }
    return { contents: [{ uri, ...known(RESOURCES, uri, 'resource') }] };
  });
  on(SubscribeRequestSchema, () => ({}));
  on(UnsubscribeRequestSchema, () => ({}));

  on(ListPromptsRequestSchema, () => ({
    prompts: Object.entries(PROMPTS).map(([name, [description, names]]) => ({
      name,
      description,
      arguments: names.map((argument) => ({ name: argument, description: argument, required: true })),
    })),
  }));
  on(GetPromptRequestSchema, ({ params }) => ({
    messages: known(PROMPTS, params.name, 'prompt')[2](params.arguments ?? {}),
  }));
  on(CompleteRequestSchema, ({ params: { argument } }) => {
    const values = ['paris', 'park', 'party'].filter((word) => word.startsWith(argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  return server;
}
