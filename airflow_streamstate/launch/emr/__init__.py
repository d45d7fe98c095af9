"""Drivers that are job runs of EMR Serverless, or of EMR on EKS."""
