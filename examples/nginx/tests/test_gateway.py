"""Drives the gateway over HTTP, as callers meet it, against a real server."""
import binascii
import itertools
import json
import math
import re
import signal
import sys
import time
import unittest

import harness
from harness import SECRET, Gateway, ask, keys, start_server, wait_for

sys.path.insert(0, str(harness.EXAMPLE))
from make_token import signed_token  # noqa: E402


def rule(name="limit", keys=("ip:address",), rate=0.01, burst=2, match=None, **config):
    made = {
        "name": name,
        "limit_keys": list(keys),
        "algorithm_config": {"tokens_per_second": rate, "burst": burst, **config},
    }
    if match:
        made["match"] = match
    return made


class GatewayTest(unittest.TestCase):
    """One server for all tests of a class; each test has its own gateway and an empty keyspace."""

    @classmethod
    def setUpClass(cls):
        cls.server = start_server()
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        ask(self.server, "FLUSHALL")

    def gateway(self, *rules, server=None, **options):
        gateway = Gateway(list(rules), (server or self.server).port, **options)
        self.addCleanup(gateway.stop)
        return gateway.wait_ready()

    def assert_statuses(self, expected, answers):
        self.assertEqual(expected, [answer.status for answer in answers])


class Answers(GatewayTest):
    def test_burst_passes_then_429_then_passes_after_retry_after(self):
        gateway = self.gateway(rule("strict", rate=1, burst=3))
        allowed = [gateway.get() for _ in range(3)]
        self.assert_statuses([200, 200, 200], allowed)
        self.assertEqual(["2", "1", "0"], [answer["RateLimit-Remaining"] for answer in allowed])
        denied = gateway.get()
        self.assertEqual(429, denied.status)
        self.assertIn(denied.whole("Retry-After"), (1, 2))
        time.sleep(denied.whole("Retry-After"))
        self.assertEqual(200, gateway.get().status)
        self.assertEqual((4, 1, 0), tuple(map(gateway.count, ("allowed", "denied", "failed_open"))))

    def test_fields_of_an_allowed_answer(self):
        gateway = self.gateway(rule("per-address", rate=0.5, burst=20), rule("hourly", rate=0.1, burst=360))
        answer = gateway.get()
        self.assertEqual('"per-address";q=20;w=40, "hourly";q=360;w=3600', answer["RateLimit-Policy"])
        self.assertEqual('"per-address";r=19;t=2, "hourly";r=359;t=10', answer["RateLimit"])
        # The three older fields know one limit: the tightest.
        self.assertEqual("20", answer["RateLimit-Limit"])
        self.assertEqual("19", answer["RateLimit-Remaining"])
        self.assertEqual("2", answer["RateLimit-Reset"])
        self.assertIsNone(answer["Retry-After"])
        self.assertIsNone(answer["X-RateLimit-Reason"])

    def test_an_override_that_gives_more_hides_the_quota(self):
        gateway = self.gateway(rule(), rule("hourly", rate=0.1, burst=360))
        gateway.get()
        [key] = [key for key in keys(self.server) if "hourly" not in key]
        ask(self.server, "TB.OVERRIDE", key, "50", "50/d", "60000", "FULL")
        answer = gateway.get()
        self.assertRegex(answer["RateLimit"], '"limit";r=49;t=')
        self.assertEqual('"hourly";q=360;w=3600', answer["RateLimit-Policy"])
        self.assertIsNone(answer["RateLimit-Limit"])
        self.assertEqual("49", answer["RateLimit-Remaining"])

    def test_fields_and_body_of_a_rejection(self):
        gateway = self.gateway(rule("wide", burst=50), rule("narrow", burst=1))
        gateway.get()
        denied = gateway.get()
        self.assertEqual(429, denied.status)
        self.assertEqual('rate-exceeded;rule="narrow"', denied["X-RateLimit-Reason"])
        self.assertEqual('"wide";q=50;w=5000, "narrow";q=1;w=100', denied["RateLimit-Policy"])
        reset_s = int(re.fullmatch(r'"narrow";r=0;t=(\d+)', denied["RateLimit"])[1])
        self.assertEqual(("1", "0", str(reset_s)), tuple(
            denied[f"RateLimit-{name}"] for name in ("Limit", "Remaining", "Reset")))
        self.assertLessEqual(reset_s, denied.whole("Retry-After"))
        self.assertEqual("no-store", denied["Cache-Control"])
        self.assertEqual("application/problem+json", denied["Content-Type"])
        problem = json.loads(denied.body)
        self.assertEqual(429, problem["status"])
        self.assertEqual(["narrow"], problem["violated-policies"])
        self.assertTrue(problem["type"].endswith("#quota-exceeded"))

    def test_retry_after_is_spread_and_the_same_for_the_same_caller(self):
        gateway = self.gateway(rule(keys=["header:X-Caller"], rate=0.01, burst=1))
        stretches = []
        for caller in range(20):
            headers = {"X-Caller": f"caller-{caller}"}
            self.assertEqual(200, gateway.get(headers=headers).status)
            of_caller = []
            for denied in (gateway.get(headers=headers), gateway.get(headers=headers)):
                wait_s, retry_after_s = denied.whole("RateLimit-Reset"), denied.whole("Retry-After")
                self.assertTrue(50 < wait_s <= 100)
                self.assertTrue(wait_s <= retry_after_s <= math.ceil(1.5 * wait_s))
                of_caller.append(retry_after_s / wait_s)
            # Both are rounded to seconds of about a hundred.
            self.assertAlmostEqual(*of_caller, delta=0.05)
            stretches.append(of_caller[0])
        self.assertLess(min(stretches), 1.15)
        self.assertGreater(max(stretches), 1.35)

    def test_waits_are_rounded_up_to_seconds(self):
        # Half a second until the next token, so three quarters with all of the jitter.
        gateway = self.gateway(rule(rate=2, burst=2))
        self.assertEqual('"limit";r=1;t=1', gateway.get()["RateLimit"])
        denied = wait_for(lambda: (answer := gateway.get()).status == 429 and answer, "a rejection")
        self.assertEqual(("1", "1"), (denied["Retry-After"], denied["RateLimit-Reset"]))

    def test_cost_above_burst_promises_no_retry(self):
        gateway = self.gateway(rule(burst=10, cost_source="query:cost"))
        denied = gateway.get("/?cost=11")
        self.assertEqual(429, denied.status)
        self.assertIsNone(denied["Retry-After"])
        self.assertEqual('cost-exceeds-burst;rule="limit"', denied["X-RateLimit-Reason"])
        self.assertEqual('"limit";r=10', denied["RateLimit"])
        self.assertEqual(200, gateway.get("/?cost=10").status)


class Rules(GatewayTest):
    def test_rules_are_decided_together(self):
        gateway = self.gateway(rule("outer", burst=5), rule("inner", burst=1, match={"path": "/inner"}))
        self.assertEqual(200, gateway.get("/inner").status)
        for _ in range(3):
            self.assertEqual(429, gateway.get("/inner").status)
        # What the inner rule refused took nothing from the outer one.
        self.assertEqual("3", gateway.get("/")["RateLimit-Remaining"])

    def test_a_request_that_no_rule_matches_passes_without_fields(self):
        gateway = self.gateway(rule(burst=1, match={"path": "/api/*"}))
        for _ in range(3):
            answer = gateway.get("/static/logo.png")
            self.assertEqual((200, None), (answer.status, answer["RateLimit"]))
        self.assert_statuses([200, 429, 429, 429], [
            gateway.get("/api/a"), gateway.get("/api/b"), gateway.get("//api/c"), gateway.get("/%61pi/d")])

    def test_keys_name_the_rule_and_the_identity(self):
        gateway = self.gateway(
            rule("per-address"), rule("per-key", ["header:X-Api-Key"]), rule("per-user", ["query:user", "path"]))
        gateway.get("/a?user=ann%7Bx%7D,b", headers={"X-Api-Key": "k1:=%"})
        self.assertEqual([
            "tb:per-address:127.0.0.1", "tb:per-key:k1:%3D%25", "tb:per-user:ann%7Bx%7D%2Cb,/a",
        ], keys(self.server))

    def test_each_kind_of_key_has_its_own_buckets(self):
        gateway = self.gateway(rule("k", ["header:X-Api-Key"], burst=1), rule("q", ["query:user"], burst=1),
                               rule("p", ["path"], burst=1))
        self.assertEqual(200, gateway.get("/1?user=a", {"X-Api-Key": "a"}).status)
        self.assertEqual(429, gateway.get("/2?user=b", {"X-Api-Key": "a"}).status)
        self.assertEqual(429, gateway.get("/2?user=a", {"X-Api-Key": "b"}).status)
        self.assertEqual(429, gateway.get("/1?user=b", {"X-Api-Key": "b"}).status)
        self.assertEqual(200, gateway.get("/2?user=b", {"X-Api-Key": "b"}).status)

    def test_no_number_of_arguments_hides_a_key(self):
        gateway = self.gateway(rule(keys=["query:user"], burst=1))
        self.assertEqual(200, gateway.get("/?user=a").status)
        self.assertEqual(429, gateway.get("/?" + "x&" * 3000 + "user=a").status)

    def test_who_shows_no_key_is_known_by_the_address(self):
        gateway = self.gateway(rule(keys=["header:X-Api-Key"], burst=1))
        self.assert_statuses([200, 429, 429], [gateway.get(), gateway.get(), gateway.get(headers={"X-Api-Key": ""})])
        self.assertEqual(200, gateway.get(source="127.0.0.2").status)
        # Nor can a value pass for an address.
        self.assertEqual(200, gateway.get(headers={"X-Api-Key": "ip=127.0.0.1"}).status)

    def test_long_keys_are_hashed(self):
        gateway = self.gateway(rule(keys=["header:X-Api-Key"], burst=1))
        a, b = "k" * 4000 + "a", "k" * 4000 + "b"
        self.assert_statuses([200, 429, 200], [gateway.get(headers={"X-Api-Key": key}) for key in (a, a, b)])
        for key in keys(self.server):
            self.assertRegex(key, r"^tb:limit:sha256=[0-9a-f]{64}$")

    def test_a_forged_forwarded_for_gets_no_new_bucket(self):
        gateway = self.gateway(rule(burst=1))
        self.assert_statuses([200, 429], [
            gateway.get(headers={"X-Forwarded-For": address}) for address in ("203.0.113.1", "203.0.113.2")])

    def test_addresses_from_a_trusted_proxy(self):
        gateway = self.gateway(rule(burst=1), behind_proxy=True)

        def status(address, source="127.0.0.1"):
            return gateway.get(headers={"X-Forwarded-For": address}, source=source).status

        self.assertEqual([200, 429, 200], [status("203.0.113.1"), status("203.0.113.1"), status("203.0.113.2")])
        # What the caller wrote in front of the proxy's own entry is not believed.
        self.assertEqual(429, status("198.51.100.9, 203.0.113.1"))
        # A customer's IPv6 is a /64, and an IPv4 address is itself in either spelling.
        self.assertEqual([200, 429, 200], [status("2001:db8:1:2::1"), status("2001:db8:1:2:3:4:5:6"),
                                           status("2001:db8:1:3::1")])
        self.assertEqual([200, 429, 200], [status("203.0.113.7"), status("::ffff:203.0.113.7"),
                                           status("::ffff:203.0.113.8")])
        # A proxy that is not in the list is just another caller.
        self.assertEqual([200, 429], [status("203.0.113.50", "127.0.0.2"), status("203.0.113.51", "127.0.0.2")])

    def test_cost_sources(self):
        for source, request in (
            ("header:X-Tokens", lambda gateway, cost: gateway.get(headers={} if cost is None else {"X-Tokens": cost})),
            ("query:tokens", lambda gateway, cost: gateway.get("/" if cost is None else f"/?tokens={cost}")),
        ):
            with self.subTest(source):
                ask(self.server, "FLUSHALL")
                gateway = self.gateway(rule(burst=1000, rate=0.001, cost_source=source, default_cost=100))
                expected = 1000
                for cost, taken in (("30", 30), ("0.5", 0.5), ("2e1", 20), (None, 100), ("many", 100), ("", 100),
                                    ("-5", 100), ("0", 100), ("nan", 100), ("inf", 100), ("0x10", 100)):
                    expected -= taken
                    answer = request(gateway, cost)
                    self.assertEqual((200, str(math.floor(expected))), (answer.status, answer["RateLimit-Remaining"]),
                                     f"after cost {cost!r}")
                # Nothing that a caller can claim makes Redis reply with an error, which would let it through.
                for cost in ("1e12", "1e13", "1e400", "9" * 32):
                    answer = request(gateway, cost)
                    self.assertEqual((429, None), (answer.status, answer["Retry-After"]), f"cost {cost!r}")
                answer = request(gateway, "0" * 33)
                self.assertEqual(str(math.floor(expected - 100)), answer["RateLimit-Remaining"])
                request(gateway, "1e-300")
                self.assertEqual(0, gateway.count("failed_open"))

    def test_fixed_cost(self):
        gateway = self.gateway(rule(burst=10, cost_source="fixed", fixed_cost=4))
        answers = [gateway.get(headers={"X-Tokens": "1"}) for _ in range(3)]
        self.assert_statuses([200, 200, 429], answers)
        self.assertEqual(["6", "2", "2"], [answer["RateLimit-Remaining"] for answer in answers])


class Tokens(GatewayTest):
    TIERS = (
        rule("api", ["jwt:sub"], burst=5, match={"jwt:plan": "enterprise"}),
        rule("api", ["jwt:sub"], burst=2),
    )

    def policy(self, gateway, token):
        return gateway.get(token=token)["RateLimit-Policy"]

    def test_first_matching_tier_wins(self):
        gateway = self.gateway(*self.TIERS)
        enterprise = signed_token({"sub": "alice", "plan": "enterprise"}, SECRET)
        free = signed_token({"sub": "bob", "plan": "free"}, SECRET)
        self.assert_statuses([200] * 5 + [429], [gateway.get(token=enterprise) for _ in range(6)])
        self.assert_statuses([200] * 2 + [429], [gateway.get(token=free) for _ in range(3)])
        self.assertEqual('"api";q=5;w=500', self.policy(gateway, enterprise))
        self.assertEqual('"api";q=2;w=200', self.policy(gateway, free))
        self.assertEqual(["tb:api:alice", "tb:api:bob"], keys(self.server))

    def test_a_token_that_does_not_verify_chooses_neither_tier_nor_identity(self):
        gateway = self.gateway(*self.TIERS)
        claims = {"sub": "alice", "plan": "enterprise"}
        good = signed_token(claims, SECRET)
        head, body, signature = good.split(".")
        other_body = signed_token({**claims, "sub": "mallory"}, SECRET).split(".")[1]
        now_s = int(time.time())
        wrong = {
            "another secret": signed_token(claims, SECRET + "?"),
            "alg none, no signature": signed_token(claims, SECRET, {"alg": "none"}).rpartition(".")[0] + ".",
            "alg none, signed": signed_token(claims, SECRET, {"alg": "none"}),
            "alg RS256, signed with HS256": signed_token(claims, SECRET, {"alg": "RS256"}),
            "claims exchanged": f"{head}.{other_body}.{signature}",
            "no signature": f"{head}.{body}",
            "short signature": f"{head}.{body}.{signature[:20]}",
            "four parts": f"{good}.x",
            "unknown crit": signed_token(claims, SECRET, {"alg": "HS256", "crit": ["b64"]}),
            "expired": signed_token({**claims, "exp": now_s - 1}, SECRET),
            "not yet valid": signed_token({**claims, "nbf": now_s + 1000}, SECRET),
            "exp is text": signed_token({**claims, "exp": "tomorrow"}, SECRET),
            "not base64": "a.b.c!",
        }
        for name, token in wrong.items():
            with self.subTest(name):
                self.assertEqual('"api";q=2;w=200', self.policy(gateway, token))
        self.assertEqual(["tb:api:ip=127.0.0.1"], keys(self.server))
        # All of them together had one caller's two requests.
        self.assertEqual(2, gateway.count("allowed"))
        self.assertEqual(200, gateway.get(token=good).status)

    def test_times_and_kinds_of_claims(self):
        gateway = self.gateway(*self.TIERS)
        now_s = int(time.time())
        for sub in ("carol", 42, True):
            gateway.get(token=signed_token({"sub": sub, "exp": now_s + 1000, "nbf": now_s - 10}, SECRET))
        # Two numbers that a double does not tell apart must not share a bucket: they are no identity.
        for sub in (2**53 + 1, 1.5, ["a"], {"a": 1}, None, ""):
            gateway.get(token=signed_token({"sub": sub}, SECRET))
        self.assertEqual(["tb:api:42", "tb:api:carol", "tb:api:ip=127.0.0.1", "tb:api:true"], keys(self.server))


class RedisAway(unittest.TestCase):
    # Generous for a busy machine, and far below what a caller would take for an outage.
    QUICK_S = 1.0

    def setUp(self):
        self.server = start_server()
        self.addCleanup(self.server.stop)
        # The default timeout.
        self.gateway = Gateway([rule(burst=1)], self.server.port, REDIS_TIMEOUT_MS=None)
        self.addCleanup(self.gateway.stop)
        self.gateway.wait_ready()

    def assert_lets_through(self, requests=5):
        before = self.gateway.count("failed_open")
        for _ in range(requests):
            start = time.monotonic()
            answer = self.gateway.get()
            self.assertLess(time.monotonic() - start, self.QUICK_S)
            self.assertEqual((200, None), (answer.status, answer["RateLimit"]))
        self.assertEqual(before + requests, self.gateway.count("failed_open"))
        self.assertIn("rate limits are not enforced", self.gateway.output())

    def assert_limits_within_a_second(self):
        wait_for(lambda: self.gateway.get().status == 429, "limiting again", within_s=1)

    def test_killed_and_back(self):
        self.assertEqual([200, 429], [self.gateway.get().status for _ in range(2)])
        self.server.kill()
        self.assert_lets_through()
        # One line a second at most, not one a request.
        self.assertLess(self.gateway.output().count("rate limits are not enforced"), 5)
        self.server.start()
        self.assert_limits_within_a_second()

    def test_frozen_and_back(self):
        self.assertEqual([200, 429], [self.gateway.get().status for _ in range(2)])
        self.server.signal(signal.SIGSTOP)
        self.assert_lets_through()
        self.server.signal(signal.SIGCONT)
        self.assert_limits_within_a_second()

    def test_error_replies_let_through_too(self):
        without_module = start_server(module=False)
        self.addCleanup(without_module.stop)
        self.gateway.stop()
        self.gateway = Gateway([rule(burst=1)], without_module.port)
        self.addCleanup(self.gateway.stop)
        self.gateway.wait_ready()
        self.assert_lets_through()
        self.assertIn("unknown command", self.gateway.output())

    def test_password_and_a_second_node(self):
        locked = start_server("--requirepass", "open sesame")
        self.addCleanup(locked.stop)
        nodes = f"127.0.0.1:{self.server.port},127.0.0.1:{locked.port}"
        self.gateway.stop()
        self.server.stop()
        self.gateway = Gateway([rule(burst=1)], None, REDIS_NODES=nodes, REDIS_PASSWORD="open sesame")
        self.addCleanup(self.gateway.stop)
        self.gateway.wait_ready()
        self.assert_limits_within_a_second()


class Cluster(unittest.TestCase):
    def setUp(self):
        self.nodes = [start_server("--cluster-enabled", "yes") for _ in range(2)]
        for node, slots in zip(self.nodes, (range(8192), range(8192, 16384))):
            self.addCleanup(node.stop)
            ask(node, "CLUSTER", "ADDSLOTS", *slots)
        ask(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", self.nodes[1].port)
        for node in self.nodes:
            wait_for(lambda: "cluster_state:ok" in ask(node, "CLUSTER", "INFO"), "the cluster is up")
        rules = [rule("api", ["header:X-Caller"], burst=2), rule("per-path", ["header:X-Caller", "path"], burst=2)]
        self.gateway = Gateway(rules, self.nodes[0].port, REDIS_CLUSTER="yes")
        self.addCleanup(self.gateway.stop)
        self.gateway.wait_ready()

    def statuses(self, caller):
        return [self.gateway.get("/p", headers={"X-Caller": caller}).status for _ in range(3)]

    def test_rules_of_a_caller_share_a_slot_on_whichever_node(self):
        callers = [f"c{number}" for number in range(20)]
        for caller in callers:
            self.assertEqual([200, 200, 429], self.statuses(caller))
        self.assertEqual(0, self.gateway.count("failed_open"))
        found = [keys(node) for node in self.nodes]
        self.assertTrue(all(found))
        expected = [key for caller in callers for key in (f"tb:api:{{{caller}}}", f"tb:per-path:{{{caller}}},/p")]
        self.assertEqual(sorted(expected), sorted(sum(found, [])))

    def test_a_redirection_is_learnt_for_its_slot(self):
        names = (f"c{number}" for number in itertools.count())
        slot_on_second_node = 12345
        same_slot = (name for name in names if binascii.crc_hqx(name.encode(), 0) % 16384 == slot_on_second_node)
        for caller in itertools.islice(same_slot, 8):
            self.assertEqual([200, 200, 429], self.statuses(caller))
        # Servers before 6.2 do not count their errors.
        redirections = re.search(r"errorstat_MOVED:count=(\d+)", ask(self.nodes[0], "INFO", "errorstats"))
        self.assertLessEqual(int(redirections[1]) if redirections else 0, 2, "one for each worker of nginx")
        self.assertEqual(0, self.gateway.count("failed_open"))


class Validation(unittest.TestCase):
    def refusal(self, rules, **environment):
        """What nginx says when it refuses to start with these rules."""
        gateway = Gateway(rules, 1, **environment)
        self.addCleanup(gateway.stop)
        wait_for(lambda: gateway.process.poll() is not None, "nginx refuses to start")
        self.assertNotEqual(0, gateway.process.returncode)
        return gateway.output()

    def test_wrong_rules_name_the_rule_and_the_field(self):
        def config(**fields):
            return [{"name": "api", "limit_keys": ["ip:address"], "algorithm_config": fields}]

        def changed(**fields):
            return [{**rule("api"), **fields}]

        in_rule = 'rules.json: rule 1 "api": '
        for rules, message in (
            (config(burst=5), "algorithm_config.tokens_per_second: must be a number > 0, is missing"),
            (config(tokens_per_second=0, burst=5), "algorithm_config.tokens_per_second: must be a number > 0, is 0"),
            (config(tokens_per_second=-1, burst=5), "algorithm_config.tokens_per_second: must be a number > 0, is -1"),
            (config(rps="10", burst=5), 'algorithm_config.rps: must be a number > 0, is "10"'),
            (config(rps=1, tokens_per_second=1, burst=5), "algorithm_config.rps: is the same as tokens_per_second"),
            (config(rps=1e-10, burst=5), "algorithm_config.rps: must be at least 10^-9"),
            (config(rps=10), "algorithm_config.burst: must be a number > 0, is missing"),
            (config(rps=10, burst=9), "algorithm_config.burst: must be >= rps (10), is 9"),
            (config(rps=10, burst=1e12), "algorithm_config.burst: must be below 10^12"),
            (config(rps=0.001, burst=1e9), "algorithm_config.burst: would take more than 100 years"),
            (config(rps=1, burst=1, brust=1), "algorithm_config.brust: no such field"),
            (config(rps=1, burst=5, fixed_cost=0), "algorithm_config.fixed_cost: must be a number > 0, is 0"),
            (config(rps=1, burst=5, fixed_cost=6), "algorithm_config.fixed_cost: is 6, above burst (5)"),
            (config(rps=1, burst=5, default_cost=-1), "algorithm_config.default_cost: must be a number > 0, is -1"),
            (config(rps=1, burst=5, cost_source="query:n", default_cost=6),
             "algorithm_config.default_cost: is 6, above burst (5)"),
            (config(rps=1, burst=5, cost_source="jwt:n"), "algorithm_config.cost_source: must be fixed, header:NAME or"),
            (config(rps=1, burst=5, cost_source=7), "algorithm_config.cost_source: must be fixed, header:NAME or"),
            (changed(algorithm_config=None), "algorithm_config: must be an object, is missing"),
            (changed(limit_keys=None), "limit_keys: must be a list"),
            (changed(limit_keys=[]), "limit_keys: must be a list of at least one"),
            (changed(limit_keys=["ip"]), "limit_keys: must be ip:address, path, header:NAME, query:NAME or jwt:CLAIM"),
            (changed(limit_keys=["header:"]), "limit_keys: must be ip:address"),
            (changed(limit_keys=["header:a b"]), "limit_keys: must be ip:address"),
            (changed(limit_keys=["path", "path"]), 'limit_keys: "path" is named twice'),
            (changed(match="enterprise"), "match: must be an object"),
            (changed(match={"plan": "x"}), "match.plan: must be ip:address"),
            (changed(match={"jwt:plan": 3}), "match.jwt:plan: must be a string that is not empty, is 3"),
            (changed(limit_key=["path"]), "limit_key: no such field"),
        ):
            with self.subTest(message):
                self.assertIn(in_rule + message, self.refusal(rules))

    def test_wrong_rules_without_a_usable_name_are_named_by_their_place(self):
        for name in (None, "", "a b", "a:b", 7, "n" * 65):
            with self.subTest(name):
                self.assertIn("rules.json: rule 2: name: must be 1 to 64 letters, digits, - or _",
                              self.refusal([rule(), {**rule(), "name": name}]))

    def test_wrong_tiers(self):
        message = self.refusal([rule("a"), rule("a", match={"path": "/x"})])
        self.assertIn('rules.json: rule 2 "a": match: never reached', message)
        message = self.refusal([rule("a", match={"path": "/x"}), rule("a", ["path"])])
        self.assertIn('rules.json: rule 2 "a": limit_keys: must be the same in every tier', message)

    def test_wrong_documents(self):
        self.assertIn("rules.json: not JSON", self.refusal('{"rules": ['))
        for text in ("[]", "{}", '{"rules": {}}', '{"rules": []}', "3"):
            with self.subTest(text):
                self.assertIn('rules.json: must be {"rules": [...]}', self.refusal(text))
        self.assertIn("rules.json: rule 1: must be an object, is 5", self.refusal('{"rules": [5]}'))
        self.assertIn("RULES_FILE: /nowhere/rules.json: No such file", self.refusal([], RULES_FILE="/nowhere/rules.json"))

    def test_wrong_settings(self):
        self.assertIn('rules.json: rule 1 "limit": limit_keys: jwt:sub needs JWT_SECRET',
                      self.refusal([rule(keys=["jwt:sub"])], JWT_SECRET=None))
        self.assertIn("JWT_SECRET: must be at least 32 bytes", self.refusal([rule()], JWT_SECRET="secret"))
        self.assertIn("REDIS_NODES: must be host:port", self.refusal([rule()], REDIS_NODES="localhost"))
        self.assertIn("REDIS_TIMEOUT_MS: must be a whole number", self.refusal([rule()], REDIS_TIMEOUT_MS="0.1s"))
        self.assertIn("REDIS_CLUSTER: must be yes or no", self.refusal([rule()], REDIS_CLUSTER="1"))
        message = self.refusal([rule("a", ["path"]), rule("b", ["ip:address"])], REDIS_CLUSTER="yes")
        self.assertIn('rules.json: rule 2 "b": limit_keys: must start with path', message)


class Reload(GatewayTest):
    def test_wrong_rules_leave_the_running_gateway_as_it_is(self):
        gateway = self.gateway(rule(burst=2))
        self.assertEqual('"limit";q=2;w=200', gateway.get()["RateLimit-Policy"])
        gateway.write_rules([rule(burst=0)])
        gateway.signal(signal.SIGHUP)
        wait_for(lambda: 'rule 1 "limit": algorithm_config.burst: must be' in gateway.output(), "the error is logged")
        self.assertEqual('"limit";q=2;w=200', gateway.get()["RateLimit-Policy"])
        gateway.write_rules([rule(burst=7)])
        gateway.signal(signal.SIGHUP)
        # The limit travels with each call: the bucket that exists counts under the new one at once.
        wait_for(lambda: gateway.get()["RateLimit-Policy"] == '"limit";q=7;w=700', "the new rules hold")


class ShippedRules(GatewayTest):
    def test_the_rules_of_the_example(self):
        gateway = Gateway((harness.EXAMPLE / "rules.json").read_text(), self.server.port)
        self.addCleanup(gateway.stop)
        gateway.wait_ready()
        alice = signed_token({"sub": "alice", "plan": "enterprise"}, SECRET)
        chat = gateway.get("/v1/chat/completions", {"X-Estimated-Tokens": "2500"}, token=alice)
        self.assertEqual('"per-address";q=60;w=3, "api";q=40;w=4, "llm-tokens";q=6000;w=60', chat["RateLimit-Policy"])
        self.assertIn('"llm-tokens";r=3500;t=25', chat["RateLimit"])
        self.assertEqual(200, gateway.get("/").status)
        self.assertEqual('"per-address";q=60;w=3, "api";q=5;w=5', gateway.get("/")["RateLimit-Policy"])


if __name__ == "__main__":
    if not harness.NGINX:
        sys.exit("nginx is not installed; `make test` installs it")
    unittest.main()
