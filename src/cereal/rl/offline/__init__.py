"""Offline data: recorded episodes as indexed sources of transitions, n-step returns and windows.

episodes   a list of dicts, a Minari folder, RLDS   ->  checked, one by one       (episode)
joined     all of their steps in one array          ->  which rows are a window   (joined)
source     a batch is a gather of rows              ->  transitions, windows      (episodic)
"""
