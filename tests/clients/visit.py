"""A user at a browser. The user and the password are TOUR_USER (or "user")."""

import html.parser
import os
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar, DefaultCookiePolicy

USER = os.environ.get("TOUR_USER", "user")


class Forms(html.parser.HTMLParser):
    """The first form of a page: where it goes and what it holds."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes.get("action")
        elif tag == "input" and attributes.get("name") not in (None, "cancel", "rememberMe"):
            self.fields[attributes["name"]] = attributes.get("value") or USER


class Back(urllib.request.HTTPRedirectHandler):
    """Follows redirects up to the client's own address."""

    def __init__(self, end):
        self.end = end

    def redirect_request(self, request, fp, code, msg, headers, newurl):
        if newurl.startswith(self.end):
            raise Landed(newurl)
        return super().redirect_request(request, fp, 303, msg, headers, newurl)


class Landed(Exception):
    pass


def visit(url, end):
    """Follows redirects, fills in every form and agrees to it; the URL below `end` that the user lands on."""
    # Browsers take loopback for secure.
    cookies = CookieJar(DefaultCookiePolicy(secure_protocols=("http", "https")))
    opener = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(cookies), urllib.request.ProxyHandler({}), Back(end)
    )
    form = None
    try:
        for _ in range(10):
            with opener.open(url, data=form) as response:
                page, url = Forms(response.read().decode()), response.geturl()
            assert page.action, f"no form at {url}"
            url = urllib.parse.urljoin(url, page.action)
            form = urllib.parse.urlencode(page.fields).encode()
    except Landed as landed:
        return str(landed)
    raise AssertionError(f"still at {url}")
