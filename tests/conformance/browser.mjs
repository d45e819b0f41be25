// A browser by hand, for the connect pages: it keeps cookies, sends forms and follows redirects, and runs no scripts.

/** The text of an attribute. */
const plain = (text) => text.replaceAll('&quot;', '"').replaceAll('&lt;', '<').replaceAll('&amp;', '&');

/** The first group of `pattern` in a page. */
function part(page, pattern) {
  const found = page.match(pattern);
  if (!found) throw new Error(`no ${pattern} in ${page}`);
  return plain(found[1]);
}

export class Browser {
  #cookies = new Map();

  /** Requests `url` without following redirects. */
  async #send(url, options = {}) {
    const { host } = new URL(url);
    const cookie = [...(this.#cookies.get(host) ?? [])].map((pair) => pair.join('=')).join('; ');
    const headers = { ...options.headers, ...(cookie && { cookie }) };
    const answer = await fetch(url, { ...options, headers, redirect: 'manual' });
    const jar = this.#cookies.get(host) ?? new Map();
    for (const line of answer.headers.getSetCookie()) {
      const [name, ...value] = line.split(';')[0].split('=');
      jar.set(name, value.join('='));
    }
    this.#cookies.set(host, jar);
    return answer;
  }

  /** Opens `url`, and follows redirects until there is a page; its text. */
  async open(url) {
    for (let hops = 0; hops < 20; hops += 1) {
      const answer = await this.#send(url);
      const location = answer.headers.get('location');
      if (!location) return answer.text();
      url = new URL(location, url).href;
    }
    throw new Error(`no end of redirects at ${url}`);
  }

  /**
   * Connects the account of the page at `url`: sends its form, goes on to the authorization server and comes back.
   * Returns the last page, which is an earlier one where the gateway does not go on.
   */
  async connect(url) {
    const page = await this.open(url);
    if (!page.includes('value="connect"')) return page;
    const body = new URLSearchParams({ token: part(page, /name="token" value="([^"]*)"/), action: 'connect' });
    const sent = await this.#send(url, { method: 'POST', body, headers: { origin: new URL(url).origin } });
    const next = await sent.text();
    if (!next.includes('http-equiv="refresh"')) return next;
    return this.open(part(next, /http-equiv="refresh" content="\d+;url=([^"]*)"/));
  }
}

/** The heading of a page. */
export const heading = (page) => part(page, /<h1[^>]*>([^<]*)</);
