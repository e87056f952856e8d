"""Handwritten digits, learned together by softmax regression."""
