"""The target service: the decode loop over the target model, tree verification, sampling and features."""
