"""Training data: conversion to JSON Lines of a session, templates and checks (docs/formats.md)."""
