"""heed serve as coding agents see it: through the official client of the Model Context Protocol."""

import asyncio
import json
import os
import subprocess
import tempfile
import unittest

LINE = '  return sum > 0 ? 1.0F / sum : __builtin_nanf("");\n'
FILE = "cpu/rows.hpp"


def edit(insight, replacement):
    return f"<insight>{insight}</insight>\n{FILE}\n<<<<<<< SEARCH\n{LINE}=======\n{replacement}>>>>>>> REPLACE\n"


def setUpModule():
    global Client, StdioServerParameters, stdio_client
    try:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
    except ImportError as error:
        raise unittest.SkipTest(f"the client of the Model Context Protocol is not installed: {error}") from error


class Serve(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = os.path.join(folder.name, "a.db")
        self.arguments = ["serve", "--shape", "b1h1l48d16:fp32", "--device", "cpu", "--measure-limit", "0.02", "--db", self.database]

    def converse(self, conversation):
        async def run():
            server = StdioServerParameters(command=os.environ["HEED_BINARY"], args=self.arguments)
            async with Client(stdio_client(server)) as client:
                return await conversation(client)

        return asyncio.run(asyncio.wait_for(run(), 600))

    @staticmethod
    def text(result):
        return result.content[0].text

    def test_an_agent_lists_reads_and_judges(self):
        async def conversation(client):
            tools = {tool.name for tool in (await client.list_tools()).tools}
            self.assertEqual(tools, {"families", "source", "judge_source", "judge_knobs", "profile", "insights", "best"})
            resources = {str(one.uri) for one in (await client.list_resources()).resources}
            self.assertEqual(resources, {"heed://contract", "heed://workload", "heed://evidence"})
            contract = await client.read_resource("heed://contract")
            self.assertIn("<<<<<<< SEARCH", contract.contents[0].text)

            families = json.loads(self.text(await client.call_tool("families", {})))
            self.assertEqual([family["name"] for family in families["families"]], ["fwd_cpu"])
            files = json.loads(self.text(await client.call_tool("source", {})))["files"]
            self.assertIn(FILE, [file["path"] for file in files])
            source = self.text(await client.call_tool("source", {"path": FILE}))
            self.assertIn(LINE, source)

            good = edit("tests the sum first", '  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf("");\n')
            judged = json.loads(self.text(await client.call_tool("judge_source", {"edits": good})))
            self.assertIn(judged["verdict"], ("ok", "duplicate"), judged["reason"])
            wrong = json.loads(self.text(await client.call_tool("judge_source", {"edits": edit("is wrong", "  return sum;\n")})))
            self.assertNotIn(wrong["verdict"], ("ok", "duplicate"))
            unbuilt = json.loads(self.text(await client.call_tool("judge_source", {"edits": edit("does not compile", "  return oops;\n")})))
            self.assertEqual(unbuilt["verdict"], "build_failed")
            self.assertIn("oops", unbuilt["log"])
            none = json.loads(self.text(await client.call_tool("judge_source", {"edits": "I would unroll the loop."})))
            self.assertEqual((none["verdict"], none["check"]), ("illegal", "edits"))

            default = families["families"][0]["default"]
            knobs = json.loads(self.text(await client.call_tool("judge_knobs", {"config": default, "why": "the default"})))
            self.assertIn(knobs["verdict"], ("ok", "duplicate"))
            best = json.loads(self.text(await client.call_tool("best", {})))["best"]
            for trial in best:
                profile = json.loads(self.text(await client.call_tool("profile", {"trial": trial["trial"]})))
                self.assertIn("text", profile["diagnosis"])
            insights = json.loads(self.text(await client.call_tool("insights", {})))
            self.assertIsInstance(insights["insights"], list)
            evidence = json.loads((await client.read_resource("heed://evidence")).contents[0].text)
            self.assertGreaterEqual(len(evidence), 4)

            refused = await client.call_tool("source", {"path": "lab/trial/trial_runner.cpp"})
            self.assertTrue(refused.is_error)
            self.assertIn("no editable source", self.text(refused))
            missing = await client.call_tool("profile", {"trial": 10**6})
            self.assertTrue(missing.is_error)

        self.converse(conversation)
        # Everything is stored when the agent has gone.
        shown = json.loads(subprocess.run([os.environ["HEED_BINARY"], "show", "1", "--json", "--db", self.database], capture_output=True, check=True).stdout)
        self.assertGreaterEqual(len(shown["trials"]), 4)
        self.assertEqual(shown["state"], "judged")

    def test_two_servers_on_one_database_judge_into_runs_of_their_own(self):
        async def judge(client):
            config = json.loads(self.text(await client.call_tool("families", {})))["families"][0]["default"]
            return json.loads(self.text(await client.call_tool("judge_knobs", {"config": config})))["run"]

        async def conversation(client):
            first = await judge(client)
            server = StdioServerParameters(command=os.environ["HEED_BINARY"], args=self.arguments)
            async with Client(stdio_client(server)) as other:
                self.assertNotEqual(await judge(other), first)

        self.converse(conversation)

    def test_a_client_that_sends_garbage_and_dies(self):
        server = subprocess.Popen(
            [os.environ["HEED_BINARY"], *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        answers, _ = server.communicate(b'{\n[1]\n\xff\xfe\n{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n{"jsonrpc": "2.0", "id": 2, "meth', timeout=120)
        lines = [json.loads(line) for line in answers.splitlines()]
        self.assertEqual([line["error"]["code"] for line in lines[:3]], [-32700, -32600, -32700])
        self.assertEqual(lines[3], {"jsonrpc": "2.0", "id": 1, "result": {}})
        self.assertEqual(server.returncode, 0)

    def test_whole_numbers_that_a_tool_does_not_take(self):
        def call(name, arguments):
            return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}) + "\n"

        calls = [call("insights", {"most": 10**12}), call("insights", {"most": -5}), call("best", {"most": 0}), call("profile", {"trial": 2**63})]
        server = subprocess.run([os.environ["HEED_BINARY"], *self.arguments], input="".join(calls), capture_output=True, text=True, timeout=600)
        errors = [json.loads(line)["error"] for line in server.stdout.splitlines()]
        self.assertEqual([error["code"] for error in errors], [-32602] * 4)
        for error, words in zip(errors, ["insights is 1000000000000; it is a whole number from 1 to 2147483647", "is -5", "is 0", str(2**63)]):
            self.assertIn(words, error["message"])
