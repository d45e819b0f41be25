// A user at a browser: follows redirects with cookies, fills in every form and agrees to it, until it is
// sent back to the client. The user and the password are TOUR_USER (or "user").
import process from 'node:process';

const USER = process.env.TOUR_USER ?? 'user';
const plain = (text) => text.replaceAll('&amp;', '&');

/** What a form is answered with: its own values, our user in empty fields, and no button that cancels. */
function fields(page) {
  const form = new URLSearchParams();
  for (const [input] of page.matchAll(/<input[^>]*>/g)) {
    const name = /\sname="([^"]+)"/.exec(input)?.[1];
    const value = /\svalue="([^"]*)"/.exec(input)?.[1];
    if (name && name !== 'cancel' && name !== 'rememberMe') form.append(name, value ? plain(value) : USER);
  }
  return form;
}

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
      next = { url: new URL(plain(action), next.url).href, form: fields(page) };
    } else {
      throw new Error(`${response.status} at ${next.url}: ${page.slice(0, 500)}`);
    }
  }
  throw new Error(`still redirected at ${next.url}`);
}
