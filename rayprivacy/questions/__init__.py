"""Questions with answers and evidence, asked about released or public text: pure functions, apart from Ray."""
