"""Stages that Python runs."""
