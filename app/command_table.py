"""The table of commands: every key, slash command, palette entry, help line and README row is a row here.

A command is carried out by the method `do_NAME(argument)` of the screen, whatever way it was called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Where = Literal[
    "app", "chat", "prompt", "transcript", "chats", "steps", "compare", "bench", "results", "report",
    "picker", "downloads", "settings", "pull", "help", "text",
]  # fmt: skip
PLACES: dict[Where, str] = {  # titles of the places beside the chat
    "transcript": "On a message (Tab goes there, Esc comes back)",
    "chats": "In the list of chats",
    "picker": "In the lists of models and drafters",
    "downloads": "In the downloads",
    "settings": "In the settings",
    "pull": "At the first start, and where a model is missing",
    "help": "In the help",
    "text": "In a text: the prompt, the log, the doctor's findings, the keys",
    "steps": "In the step inspector",
    "compare": "In the comparison",
    "bench": "In the benchmark",
    "results": "In the list of results",
    "report": "In a report",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What commands are possible depends on."""

    ready: bool = False  # a target is loaded
    generating: bool = False
    loading: bool = False
    turns: int = 0
    text: bool = False  # some reply has text


def always(now: Situation) -> str:
    """No condition."""
    return ""


def at_rest(now: Situation) -> str:
    """Only between replies."""
    return "Not while a reply is written: Esc stops it." if now.generating else ""


def with_target(now: Situation) -> str:
    """Only with a loaded target."""
    return "" if now.ready else "No model is loaded yet."


def under_way(now: Situation) -> str:
    """Only while something runs that can be stopped."""
    return "" if now.generating or now.loading else "Nothing is running."


def with_text(now: Situation) -> str:
    """Only when there is a reply to copy."""
    return "" if now.text else "There is no reply to copy yet."


def can_retry(now: Situation) -> str:
    """Only between replies, after at least one question."""
    return at_rest(now) or ("" if now.turns else "There is no question to answer again.") or with_target(now)


def with_turns(now: Situation) -> str:
    """Only between replies, after at least one question."""
    return at_rest(now) or ("" if now.turns else "The chat is empty.")


def can_continue(now: Situation) -> str:
    """Only between replies, with a model."""
    return with_turns(now) or with_target(now)


def can_race(now: Situation) -> str:
    """Only between replies and loads, with a model: a measurement needs the engine for itself."""
    return at_rest(now) or ("Not while a model is loaded: Esc stops it." if now.loading else "") or with_target(now)


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the program can do, and the ways to it."""

    name: str  # stable: the id of its key binding, and of its method
    help: str
    keys: str = ""  # Textual key names, comma separated
    slash: str = ""
    usage: str = ""  # what follows the slash command; in [] when it may be left out
    label: str = ""  # in the key bar
    when: Callable[[Situation], str] = always  # "" = possible, else the reason why not
    where: Where = "chat"
    bind: bool = True  # False: the widget handles the keys itself, since they depend on the cursor
    palette: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("send", "Send the prompt", "enter", label="send", where="prompt"),
    Command("newline", "Start a new line in the prompt", "ctrl+j,alt+enter,shift+enter", label="newline", where="prompt"),
    Command("older", "Older prompt, from the first line", "up", where="prompt", bind=False),
    Command("newer", "Newer prompt, from the last line", "down", where="prompt", bind=False),
    Command("complete", "Complete a /command, else go to the transcript", "tab", where="prompt", bind=False),
    Command("back", "Close what is open, clear the selection, stop the reply, go to the prompt", "escape"),
    Command("stop", "Stop the reply or the load; the text so far is kept", slash="stop", when=under_way, palette=True),
    Command("interrupt", "Copy the selection, else stop the reply", "ctrl+c"),
    Command(
        "draft",
        "Choose the drafter; alone it opens the list",
        "ctrl+g",
        "draft",
        "[NAME|off|auto|none|ngram] [METHOD]",
        "drafter",
        palette=True,
    ),
    Command("model", "Load another model; alone it opens the list", "ctrl+l", "model", "[NAME]", "model", at_rest, palette=True),
    Command("new", "Start a new chat", "ctrl+n", "new", "[TITLE]", "new", at_rest, palette=True),
    Command("retry", "Answer the last question again, as a new version", "ctrl+r", "retry", when=can_retry, palette=True),
    Command("carry_on", "Go on with a reply that was cut off", slash="continue", when=can_continue, palette=True),
    Command("chats", "Saved chats: open, search, rename, delete", "ctrl+o", "chats", "[TEXT]", "chats", palette=True),
    Command("title", "Give the chat a title", slash="title", usage="[TEXT]", palette=True),
    Command("edit", "Change the question and send it again; the old one stays as a branch", slash="edit", when=can_continue, palette=True),
    Command("undo", "Leave out the last turn", slash="undo", when=with_turns, palette=True),
    Command("redo", "Bring back what was left out", slash="redo", when=at_rest, palette=True),
    Command("copy", "Copy the last reply, the chat, or its code", slash="copy", usage="[last|all|code N]", when=with_text, palette=True),
    Command("export", "Write the chat to a file", slash="export", usage="md|json|jsonl [PATH]", when=with_turns, palette=True),
    Command("load", "Open a chat from an exported file", slash="load", usage="PATH", when=at_rest, palette=True),
    Command("attach", "Send a text file with the next question; off takes them away", slash="attach", usage="PATH|off", palette=True),
    Command("find", "Find a text in this chat", slash="find", usage="[TEXT]", palette=True),
    Command("k", "Draft exactly N tokens per step; auto decides by itself", slash="k", usage="N|auto", palette=True),
    Command("temp", "Temperature of the next replies; 0 takes the likeliest token", slash="temp", usage="X|auto", palette=True),
    Command("greedy", "Always take the likeliest token: temperature 0", slash="greedy", palette=True),
    Command("topp", "Keep the likeliest tokens up to this share", slash="topp", usage="X|auto", palette=True),
    Command("topk", "Keep the N likeliest tokens; 0 keeps all", slash="topk", usage="N|auto", palette=True),
    Command("minp", "Drop tokens below this share of the likeliest", slash="minp", usage="X|auto", palette=True),
    Command("penalty", "Make repetition rarer; 1 is none", slash="penalty", usage="X|auto", palette=True),
    Command("max", "End replies after N tokens", slash="max", usage="N|off", palette=True),
    Command("seed", "Fix the seed: same seed, same text; off makes each reply new", slash="seed", usage="N|off", palette=True),
    Command("system", "Set the system prompt; off removes it", slash="system", usage="[TEXT|@FILE|off]", palette=True),
    Command("preset", "Keep the settings under a name, or take them", slash="preset", usage="[save|use|delete NAME]", palette=True),
    Command(
        "think",
        "Fold or show thoughts; on, off: let the model think, or not",
        slash="think",
        usage="fold|show|on|off|auto",
        palette=True,
    ),
    Command("tokens", "Show which tokens came from the draft", "ctrl+t", "tokens", "[on|off]", "tokens", palette=True),
    Command("steps", "Look at the steps of the last reply one by one", "f3", "steps", when=with_text, palette=True),
    Command("stats", "More numbers, one line of them, or none", "ctrl+s", "stats", "[off|line|full]", "numbers", palette=True),
    Command("show_prompt", "The exact text that the model reads", slash="prompt", when=can_race, palette=True),
    Command("context", "How full the context is", slash="context", when=can_race, palette=True),
    Command("downloads", "Fetch and delete models, see what they take", "f4", "downloads", "[NAME]", palette=True),
    Command("settings", "Change and keep the settings", "f2", "settings", palette=True),
    Command("theme", "Choose the colours; alone it lists them", slash="theme", usage="[NAME]", palette=True),
    Command("compare", "Race drafters on one prompt", "f5", "compare", "[NAME ...]", "compare", can_race, palette=True),
    Command("bench", "Measure drafters on sets of prompts", "f6", "bench", "[SET] [NAME ...]", "bench", can_race, palette=True),
    Command("results", "Saved measurements: open, compare two, delete", slash="results", palette=True),
    Command("doctor", "What this machine has, and what could be installed", slash="doctor", when=at_rest, palette=True),
    Command("log", "The end of the log file", slash="log", palette=True),
    Command("keys", "The key of every command, and how to change it", slash="keys", palette=True),
    Command("page_up", "Scroll up one page", "pageup"),
    Command("page_down", "Scroll down one page", "pagedown"),
    Command("top", "Go to the first message", "ctrl+home"),
    Command("follow", "Go to the end and follow the reply; also End in an empty prompt", "ctrl+end"),
    Command("palette", "All commands", "ctrl+p", label="commands", where="app", bind=False),
    Command("help", "Keys and commands; with a text, those that name it", "f1", "help", "[TEXT]", "help", palette=True),
    Command("quit", "Leave specchat", "ctrl+q", "quit", where="app", palette=True),
    Command("message_up", "The message before", "k,up", label="up", where="transcript"),
    Command("message_down", "The next message", "j,down", label="down", where="transcript"),
    Command("first_message", "The first message", "g,home", where="transcript"),
    Command("last_message", "The last message, and follow", "G,end", where="transcript"),
    Command("copy_message", "Copy this message", "y", label="copy", where="transcript"),
    Command("copy_chat", "Copy the whole chat", "Y", where="transcript"),
    Command("copy_code", "Copy its code block; again: its next one", "c", label="code", where="transcript"),
    Command("tokens_here", "Show which tokens of this reply came from the draft", "t", where="transcript"),
    Command("steps_here", "Look at the steps of this reply one by one", "i", where="transcript"),
    Command("edit_here", "Change this question and send it again", "e", label="edit", when=can_continue, where="transcript"),
    Command("retry_here", "Answer this question again, as a new version", "r", label="again", when=can_retry, where="transcript"),
    Command(
        "version_before",
        "The version of the answer, or the branch of the question, before",
        "left_square_bracket,less_than_sign",
        label="version",
        when=with_turns,
        where="transcript",
    ),
    Command("version_after", "The next version or branch", "right_square_bracket,greater_than_sign", when=with_turns, where="transcript"),
    Command("unfold", "Open or fold its thoughts; else one page down", "o,space", where="transcript"),
    Command(
        "delete",
        "Delete this version, or this question and all that follows",
        "d,delete",
        label="delete",
        when=with_turns,
        where="transcript",
    ),
    Command("find_here", "Find a text in this chat", "slash", label="find", where="transcript"),
    Command("find_next", "The next place with that text", "n", where="transcript"),
    Command("find_before", "The place before with that text", "N", where="transcript"),
    Command("chats_open", "Open this chat", "enter", label="open", where="chats", bind=False),
    Command("chats_list", "From the search to the list", "down,tab", where="chats"),
    Command("chats_filter", "Search", "slash", label="search", where="chats"),
    Command("chats_rename", "Give this chat another title", "r", label="rename", where="chats"),
    Command("chats_delete", "Delete this chat", "d,delete", label="delete", where="chats"),
    Command("chats_undelete", "Bring back the chat that was deleted last", "u", label="bring back", where="chats"),
    Command("chats_leave", "Back to the chat", "escape", label="back", where="chats"),
    Command("files_fetch", "Download it, or go on with a stopped download", "enter", label="download", where="downloads", bind=False),
    Command("files_back", "Back to the chat; downloads go on", "escape", label="back", where="downloads"),
    Command("files_stop", "Stop the download; what was fetched is kept", "s", label="stop", where="downloads"),
    Command("files_delete", "Delete it from this machine; asks first", "x", label="delete", where="downloads"),
    Command("set_change", "Write a value; a click does the same", "enter", label="write", where="settings", bind=False),
    Command("set_back", "Back to the chat", "escape", label="back", where="settings"),
    Command("set_previous", "The value before", "left", label="less", where="settings"),
    Command("set_next", "The next value", "right", label="more", where="settings"),
    Command("set_default", "Back to the default", "backspace,delete", label="default", where="settings"),
    Command("set_reload", "Load the model again with these settings", "l", label="load again", where="settings"),
    Command("pull_start", "Download what is missing, and go on", "enter", label="download and go on", where="pull", bind=False),
    Command("pull_choose", "Choose; 1 to 9 take a row at once", "up,down", label="choose", where="pull", bind=False),
    Command("pull_back", "Stop the download, else back to the chat", "escape", label="back", where="pull"),
    Command("help_back", "Back to the chat", "escape,f1,q", label="back", where="help"),
    Command("text_copy", "Copy all of it", "y", label="copy", where="text"),
    Command("text_back", "Back to the chat", "escape,q", label="back", where="text"),
    Command("pick_use", "Use the chosen one", "enter", label="use", where="picker", bind=False),
    Command("pick_back", "Back to the chat; stops a trial", "escape", label="back", where="picker"),
    Command("pick_try", "Write 32 tokens with it and measure", "t", label="try 32 tokens", where="picker"),
    Command("pick_check", "Check whether it goes with the target, and how: reads both tokenizers", "c", label="check", where="picker"),
    Command("pick_fetch", "Download it", "d", label="download", where="picker"),
    Command("pick_fewer", "Draft fewer tokens per step", "left", where="picker"),
    Command("pick_more", "Draft more tokens per step", "right", where="picker"),
    Command("pick_blocked", "Show or hide those that cannot be used or seldom pay, with the reason", "b", label="all", where="picker"),
    Command("pick_filter", "Filter by name", "slash", label="filter", where="picker"),
    Command("steps_back", "Back to the chat", "escape", label="back", where="steps"),
    Command("steps_rejected", "All steps, or only those with a wrong draft", "r", label="wrong drafts only", where="steps"),
    Command("steps_copy", "Copy the steps as tab-separated values", "c", label="copy", where="steps"),
    Command("race_run", "Run all lanes, with their text", "enter", label="run", where="compare"),
    Command("race_timed", "Run each lane three times, drawing only numbers: exact times", "b", label="timed", where="compare"),
    Command("race_drafters", "Choose the drafters of the lanes", "d", label="drafters", where="compare"),
    Command("race_prompt", "Change the prompt", "p", label="prompt", where="compare"),
    Command("race_longer", "Longer replies", "plus", where="compare"),
    Command("race_shorter", "Shorter replies", "minus", where="compare"),
    Command("race_play", "Watch the race again, all lanes side by side", "r", label="replay", where="compare"),
    Command("race_use", "Take the drafter of this lane, and its reply into the chat", "u", label="use", where="compare"),
    Command("race_save", "Keep the result", "s", label="save", where="compare"),
    Command("race_colours", "Show which tokens came from the draft", "t,ctrl+t", label="tokens", where="compare"),
    Command("race_up", "Lane before", "up,left,k", where="compare"),
    Command("race_down", "Next lane", "down,right,j", where="compare"),
    Command("race_bench", "Measure these drafters on many prompts", "f6", label="bench", where="compare"),
    Command("race_back", "Stop the race, or go back to the chat", "escape", label="back", where="compare"),
    Command("bench_run", "Run the benchmark", "r", label="run", where="bench"),
    Command("bench_toggle", "Take the set or drafter, or leave it out", "space,enter", where="bench", bind=False),
    Command("bench_more", "One repeat more", "plus", label="repeats", where="bench"),
    Command("bench_fewer", "One repeat fewer", "minus", where="bench"),
    Command("bench_longer", "Longer replies", "right", label="tokens", where="bench"),
    Command("bench_shorter", "Shorter replies", "left", where="bench"),
    Command("bench_copy", "Copy the report as Markdown", "y", label="copy", where="bench"),
    Command("bench_results", "Saved results", "l", label="results", where="bench"),
    Command("bench_back", "Stop, or go back", "escape", label="back", where="bench"),
    Command("results_open", "Open the report", "enter", label="open", where="results", bind=False),
    Command("results_mark", "Mark for a comparison; the second one opens it", "c,space", label="compare with", where="results"),
    Command("results_delete", "Delete the report", "x,delete", label="delete", where="results"),
    Command("results_back", "Go back", "escape", label="back", where="results"),
    Command("report_copy", "Copy as Markdown", "y", label="copy", where="report"),
    Command("report_where", "Say where the files are", "f", label="files", where="report"),
    Command("report_back", "Go back", "escape", label="back", where="report"),
)
BY_NAME = {command.name: command for command in COMMANDS}
BY_SLASH = {command.slash: command for command in COMMANDS if command.slash}
