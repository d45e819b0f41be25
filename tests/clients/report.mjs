// What every tour tells the test that runs it: one JSON line per step, on stdout.

/** Runs `steps`, in order; a failed step does not stop the later ones. Ends the process. */
export async function tour(steps, finish) {
  let isFailed = false;
  for (const [step, run] of Object.entries(steps)) {
    const started = Date.now();
    try {
      await within(60_000, step, run());
      report({ step, ok: true, ms: Date.now() - started });
    } catch (error) {
      isFailed = true;
      report({ step, ok: false, ms: Date.now() - started, error: String(error?.stack ?? error) });
    }
  }
  await within(10_000, 'finish', finish()).catch((error) => {
    isFailed = true;
    report({ step: 'finish', ok: false, error: String(error?.stack ?? error) });
  });
  process.exit(isFailed ? 1 : 0);
}

function report(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Rejects when `promise` takes longer than `ms`. */
export function within(ms, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing for ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Waits until `claim()` is truthy and gives its value. */
export async function eventually(what, claim, ms = 20_000) {
  const deadline = Date.now() + ms;
  for (;;) {
    const value = await claim();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`${what}: not within ${ms} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
