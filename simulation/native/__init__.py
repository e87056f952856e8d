"""Tier T0: C++ made from a model's layers, compiled once, one client a thread.

What is trained   net.py is a model as layers in a row; torch_layers.py reads it from an
                  nn.Sequential, numpy_layers.py from an umbel.MLP. What has no kernel is refused
                  in one line.
How               forms.py says how values lie between two layers, placing.py gives each layer its
                  C++ type and its weights their places, source.py writes the program, building.py
                  compiles and caches it, bindings.py calls it.
In C++            vectors, streams, products and losses; the kernels dense, conv, pooled (with its
                  convolution), pools, norms, embedding, elementwise; chain is a model, workers one
                  thread, pool all of them.
Who               cohort.py has the clients' examples, running.py one work, tier.py the tier;
                  testing.py is the server's own test.
"""
