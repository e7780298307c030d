"""Calls a tool of an MCP server like a LangChain agent, and prints the messages that two model providers would receive.

argv[1] is {"server": {"command": [...], "env": {...}, "cwd": DIR}, "repo": PATH}. The script does not call a model.
"""

import asyncio
import json
import sys

from langchain_anthropic.chat_models import _format_messages
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai.chat_models.base import _convert_message_to_dict


async def main():
    script = json.loads(sys.argv[1])
    server = script["server"]
    program, *arguments = server["command"]
    connection = {"transport": "stdio", "command": program, "args": arguments, "env": server["env"], "cwd": server["cwd"]}
    tools = await MultiServerMCPClient({"proctor": connection}).get_tools()
    verify = next(tool for tool in tools if tool.name == "antigravity_verify")
    call = {"name": verify.name, "args": {"repo_root": script["repo"]}, "id": "call_1", "type": "tool_call"}
    answer = await verify.ainvoke(call)
    assert isinstance(answer, ToolMessage), answer
    content = answer.content if isinstance(answer.content, list) else [{"type": "text", "text": answer.content}]
    asked = AIMessage(content="", tool_calls=[call])
    print(
        json.dumps(
            {
                "names": [tool.name for tool in tools],
                "blocks": [block["type"] for block in content],
                "openai": json.dumps(_convert_message_to_dict(answer)),
                "anthropic": json.dumps(_format_messages([HumanMessage("verify"), asked, answer], model="claude")[1]),
            }
        )
    )


asyncio.run(main())
