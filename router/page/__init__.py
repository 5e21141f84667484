"""The live page: fleet, load, decisions, acceptance and rounds, over HTTP."""
