"""Coding agents as their users run them, without a terminal: each with a home and a workspace of its own.

Their installers put a small program in the place of the agent, which a script of the package replaces later.
No scripts of packages run here, so the agents are started from the packages of this platform.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from stack import HERE

MODULES = HERE / "node_modules"
SERVER = [sys.executable, HERE / "agents/mcp_server.py"]
PYTHON_OF_LLM = Path(sys.prefix) / "llm/bin/python"
# Nothing but the gateway is to be reached: whatever else an agent calls ends at a port where nobody listens.
NO_NETWORK = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


class Agent:
    """An agent that asks for `model` through the gateway of an account. `sub_agents` says how it starts them."""

    sub_agents = None

    def __init__(self, account, folder, model):
        self.account, self.model = account, model
        self.home, self.workspace = folder / "home", folder / "workspace"
        self.home.mkdir()
        self.workspace.mkdir()

    def run(self, task):
        """Gives it a task; what it says in the end."""
        command, environment = self.command(task)
        path = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        path |= NO_NETWORK | {name.lower(): value for name, value in NO_NETWORK.items()}
        done = subprocess.run(
            [str(part) for part in command],
            env=path | environment,
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{type(self).__name__} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, name, text):
        """A file of its configuration."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path


def program(pattern):
    """The agent's program for this platform."""
    found = sorted(MODULES.glob(pattern))
    assert found, f"{MODULES} has no {pattern}: run tests/clients/run"
    return found[0]


class ClaudeCode(Agent):
    sub_agents = "awaited"

    def command(self, task):
        servers = {"words": {"command": str(SERVER[0]), "args": [str(SERVER[1])]}}
        tools = self.write("mcp.json", {"mcpServers": servers})
        options = ["--permission-mode", "acceptEdits", "--mcp-config", tools, "--allowedTools", "mcp__words"]
        environment = {
            "ANTHROPIC_BASE_URL": self.account.gateway.root,
            "ANTHROPIC_API_KEY": self.account.key,
            "ANTHROPIC_MODEL": self.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "claude-haiku-4-5-20251001",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        return [program("@anthropic-ai/claude-code-*/claude"), "-p", task, *options], environment


class Codex(Agent):
    sub_agents = "beside"

    def command(self, task):
        self.write(
            ".codex/config.toml",
            f"""
model = "{self.model}"
model_provider = "tollgate"
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.tollgate]
name = "tollgate"
base_url = "{self.account.gateway.base_url}"
env_key = "TOLLGATE_KEY"
wire_api = "responses"

[mcp_servers.words]
command = "{SERVER[0]}"
args = ["{SERVER[1]}"]
""",
        )
        # The sandbox needs rights that a container does not give.
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        codex = program("@openai/codex-*/vendor/*/bin/codex")
        return [codex, "exec", *options, task], {"TOLLGATE_KEY": self.account.key}


class OpenCode(Agent):
    sub_agents = "awaited"
    # What it takes for titles.
    small_model = "lmb-5-nano"

    def command(self, task):
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": self.account.gateway.base_url, "apiKey": "{env:TOLLGATE_KEY}"},
            "models": {self.model: {}, self.small_model: {}},
        }
        settings = {
            "model": f"tollgate/{self.model}",
            "small_model": f"tollgate/{self.small_model}",
            "share": "disabled",
            "permission": "allow",
            "provider": {"tollgate": provider},
            "mcp": {"words": {"type": "local", "command": [str(part) for part in SERVER]}},
        }
        environment = {
            "OPENCODE_CONFIG": str(self.write("opencode.json", settings)),
            "OPENCODE_DISABLE_AUTOUPDATE": "true",
            "OPENCODE_DISABLE_MODELS_FETCH": "true",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
            "TOLLGATE_KEY": self.account.key,
        }
        return [program("opencode-*/bin/opencode"), "run", task], environment


class Llm(Agent):
    def command(self, task):
        server = {"command": str(SERVER[0]), "args": [str(SERVER[1])]}
        tools = self.write("mcp.json", {"mcpServers": {"words": server}})
        options = ["-m", self.model, "-T", f'MCP("{tools}")', "--functions", HERE / "agents/llm_tools.py"]
        environment = {"OPENAI_API_KEY": self.account.key, "OPENAI_BASE_URL": self.account.gateway.base_url}
        environment |= {"LLM_TOOLS_MCP_CONFIG_DIR": str(self.home)}
        return [PYTHON_OF_LLM, "-m", "llm", *options, task], environment
