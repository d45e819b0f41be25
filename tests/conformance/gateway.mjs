// The gateway as the "client" that the conformance suite judges, in front of the suite's server.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import readline from 'node:readline';

const COMMON = `[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[auth]
mode = "none"
`;

/** The address that the gateway logs when it listens. */
async function listening(gateway) {
  for await (const line of readline.createInterface({ input: gateway.stdout })) {
    const { message, url } = JSON.parse(line);
    if (message === 'gateway started') return new URL('/mcp/suite', url);
  }
  throw new Error('the gateway did not start');
}

/**
 * Runs `tour(url)` beside a gateway (the binary DRAWBRIDGE) with the upstream `suite` at `upstream`; `tables(directory)` are
 * further tables of its configuration, which may name files of `directory`. DRAWBRIDGE_ERA is the `era` of the upstream.
 */
export async function withGateway(upstream, tour, tables = () => '') {
  const directory = mkdtempSync(join(tmpdir(), 'conformance-'));
  const file = join(directory, 'gateway.toml');
  const suite = `[upstreams.suite]\nurl = "${upstream}"\nera = "${process.env.DRAWBRIDGE_ERA}"\n`;
  writeFileSync(file, COMMON + suite + tables(directory));
  const options = { stdio: ['ignore', 'pipe', 'inherit'] };
  const gateway = spawn(process.env.DRAWBRIDGE, ['serve', '--config', file], options);
  const exited = new Promise((resolve) => gateway.on('exit', resolve));
  try {
    await tour(await listening(gateway));
  } finally {
    gateway.kill('SIGTERM');
    await exited;
    rmSync(directory, { recursive: true, force: true });
  }
}
