// A user at a browser, in twenty lines: follows redirects with cookies and presses every button,
// until it is sent back to the client.

/** Visits `start` and gives the URL that the user lands on at `redirectUri`. */
export async function visit(start, redirectUri) {
  const cookies = new Map();
  let next = { url: String(start) };
  for (let hop = 0; hop < 20; hop += 1) {
    if (next.url.startsWith(redirectUri)) return next.url;
    const response = await fetch(next.url, {
      method: next.form ? 'POST' : 'GET',
      body: next.form,
      redirect: 'manual',
      headers: { Cookie: [...cookies].map((pair) => pair.join('=')).join('; ') },
    });
    for (const line of response.headers.getSetCookie()) {
      const [name, value] = line.split(';', 1)[0].split('=', 2);
      cookies.set(name, value);
    }
    const location = response.headers.get('location');
    const page = await response.text();
    const action = /<form[^>]*action="([^"]+)"/.exec(page)?.[1];
    if (location) {
      next = { url: new URL(location, next.url).href };
    } else if (action) {
      const fields = [...page.matchAll(/<input[^>]*name="([^"]+)"[^>]*?(?:value="([^"]*)")?[^>]*>/g)];
      const form = new URLSearchParams(fields.map(([, name, value]) => [name, value ?? 'user']));
      next = { url: new URL(action, next.url).href, form };
    } else {
      throw new Error(`${response.status} at ${next.url}: ${page.slice(0, 500)}`);
    }
  }
  throw new Error(`still redirected at ${next.url}`);
}
