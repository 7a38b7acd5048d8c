"""Tests of documents, and the script that writes the generated ones."""
