"""The page's files as they are served, without a browser."""

import re

from gateway.tests.helpers.running import http_client


async def test_the_page_and_all_it_refers_to_are_served_and_nothing_is_of_another_host(make_gateway):
    async with http_client(make_gateway(captions=True)) as http:
        page = await http.get("/captions")
        assert page.headers["content-type"].startswith("text/html")
        names = set(re.findall(r'(?:src|href)="([^"]+)"', page.text))
        assert names == {"captions/captions.js", "captions/captions.css", "captions/icon.svg"}
        files = {name: await http.get(f"/{name}") for name in names}
        imported = set(re.findall(r'"\./?(\w+\.js)"', files["captions/captions.js"].text))
        files |= {name: await http.get(f"/captions/{name}") for name in imported | {"worklet.js"}}
        assert {"realtime.js"} == imported
        for name, response in files.items():
            assert response.status_code == 200, name
            assert "://" not in response.text.replace("http://www.w3.org/2000/svg", ""), name
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"<script>|<style|style=| on\w+=", page.text)  # the policy forbids them


async def test_a_gateway_without_the_page_says_how_it_gets_it(make_gateway):
    async with http_client(make_gateway(captions=False)) as http:
        response = await http.get("/captions")
        assert response.status_code == 404
        assert "--captions" in response.json()["error"]["message"]
        assert (await http.get("/captions/captions.js")).status_code == 404
